"""The pool as writers see it, kept from one write of a process to its next.

Between two writes of a busy site little changes: a few holds came and went. The audit trail, which
has a record of every grant and end, says whose; asking it is much cheaper than building the pool
anew from all holds, and a settlement stays short.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from gpuspawner.domain.devices import HostInventory
from gpuspawner.domain.policy import Policy
from gpuspawner.domain.pool import Pool
from gpuspawner.ledger.reader import Reader

Facts = tuple[Policy, tuple[HostInventory, ...], Mapping[str, str], Mapping[tuple[str, str], str]]

# Beyond so many changed leases building anew is no slower.
_MANY: Final = 200


class LastView:
    """The last pool. Only the holder of the write lock may use it.

    It lacks what other processes wrote since: each use brings it up to what the books say now. It
    is thrown away after a transaction that was rolled back.
    """

    def __init__(self) -> None:
        self._pool: Pool | None = None
        self._facts: Facts | None = None
        self._record = 0

    def now(self, books: Reader, now: datetime) -> Pool:
        """Return the pool as the books have it now."""
        facts = (books.policy() or Policy(), books.hosts(), books.cordons(), books.foreign())
        record = books.last_record()
        pool = self._pool
        if pool is None or facts != self._facts or not self._bring_up(pool, books, record):
            policy, hosts, cordons, foreign = facts
            holds = books.holds()
            pool = self._pool = Pool(policy, hosts, cordons, holds, now=now, foreign=foreign)
            self._facts = facts
        else:
            pool.move_to(now)
        self._record = record
        return pool

    def _bring_up(self, pool: Pool, books: Reader, record: int) -> bool:
        """Enter what came and went since; False when that cannot be told for sure."""
        touched = books.leases_in_records(self._record, limit=_MANY)
        if record < self._record or len(touched) >= _MANY:
            return False
        present = {hold.key: hold for hold in books.holds(touched)} if touched else {}
        for key in [key for key in pool.entered if key[2] in touched and key not in present]:
            pool.remove(pool.entered[key])
        for key, hold in present.items():
            if key not in pool.entered:
                pool.add(hold)
        # Somebody who wrote past the trail (by hand, with another program) must not deceive us.
        return books.holds_sum() == (len(pool.entered), sum(key[2] for key in pool.entered))
