"""The pool as writers see it, kept from one write of a process to its next.

Between two writes of a busy site little changes: a few holds came and went. Reading which ones is
much cheaper than building the pool anew from all of them, and a settlement stays short.
"""

from collections.abc import Mapping
from datetime import datetime

from gpuspawner.domain.devices import HostInventory
from gpuspawner.domain.policy import Policy
from gpuspawner.domain.pool import Pool
from gpuspawner.ledger.reader import Reader

Facts = tuple[Policy, tuple[HostInventory, ...], Mapping[str, str]]


class LastView:
    """The last pool. Only the holder of the write lock may use it.

    It may hold grants of a transaction that was rolled back, and lack those of other processes:
    each use compares it with what the books say now.
    """

    def __init__(self) -> None:
        self._pool: Pool | None = None
        self._facts: Facts | None = None

    def now(self, books: Reader, facts: Facts, now: datetime) -> Pool:
        """Return the pool as the books have it now."""
        pool = self._pool
        if pool is None or facts != self._facts:
            policy, hosts, cordons = facts
            pool = self._pool = Pool(policy, hosts, cordons, books.holds(), now=now)
            self._facts = facts
            return pool
        present = books.hold_keys()
        for key in pool.entered.keys() - present:
            pool.remove(pool.entered[key])
        new = present - pool.entered.keys()
        if new:
            for hold in books.holds({lease_id for _, _, lease_id in new}):
                if hold.key in new:
                    pool.add(hold)
        pool.move_to(now)
        return pool
