"""Ends the leases of servers that run and that their hub has forgotten.

It happens when a stop got lost between hub and engine, or when the hub's database is older than
what runs. Nobody can reach such a server, and its GPU would never come back.
"""

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Final

from gpuspawner.agent.hub import HubAwayError, HubServers
from gpuspawner.broker.broker import Broker
from gpuspawner.domain.endings import FORGOTTEN_AFTER, is_forgotten
from gpuspawner.domain.reasons import Code, reason

_MINUTES: Final = int(FORGOTTEN_AFTER.total_seconds() // 60)

log = logging.getLogger(__name__)


class Forgotten:
    """One hub's servers against the leases of that hub. Calls block."""

    def __init__(
        self,
        broker: Broker,
        hub: HubServers,
        hub_ids: Callable[[], frozenset[str]],
        clock: Callable[[], datetime],
    ) -> None:
        """Take the parts; ``hub_ids`` is the id of the hub that answers, once it is known."""
        self._broker = broker
        self._hub = hub
        self._hub_ids = hub_ids
        self._clock = clock
        self._missing_since: dict[int, datetime] = {}
        self._was_away = False

    def round(self) -> None:
        """Compare once. A hub that does not answer wholly says nothing about anybody.

        Raises:
            LedgerAwayError: the books cannot be read or written.
        """
        # First the books: a server is known to its hub before it has a lease.
        hub_ids = self._hub_ids()
        with self._broker.ledger.read() as books:
            leases = [lease for lease in books.holding() if lease.key.hub_id in hub_ids]
        try:
            known = self._hub.servers()
        except HubAwayError as error:
            if not self._was_away:
                log.warning("which servers the hub knows cannot be told now: %s", error)
            self._was_away = True
            self._missing_since.clear()
            return
        self._was_away = False
        now = self._clock()
        missing = [each for each in leases if (each.key.user, each.key.server) not in known]
        self._missing_since = {
            each.lease_id: self._missing_since.get(each.lease_id, now) for each in missing
        }
        for lease in missing:
            if is_forgotten(lease, self._missing_since[lease.lease_id], now):
                log.warning("the hub has forgotten the server of lease %d", lease.lease_id)
                why = reason(Code.FORGOTTEN, minutes=_MINUTES)
                self._broker.want_end(lease.lease_id, why, now)
