"""What ``health`` answers from: a look every few seconds, so that asking costs nothing."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuspawner.domain.devices import HostInventory
from gpuspawner.domain.pool import FRESH_FOR
from gpuspawner.ledger.reader import Reader
from gpuspawner.ledger.store import LedgerAwayError
from gpuspawner.service.books import Books
from gpuspawner.service.parts import Part, PartState

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLook:
    """What is known of one host's agent by its last report.

    ``silent``: so old that nobody watches the host's shares. ``trouble``: its hardware could not
    be asked.
    """

    state: PartState
    since: datetime
    age_seconds: float
    silent: bool
    trouble: bool
    simulated: bool


class Pulse:
    """Looks at the ledger, and through it at the agents."""

    def __init__(
        self, books: Books, clock: Callable[[], datetime], *, every_seconds: float = 5.0
    ) -> None:
        """Take what is read; nothing is known before the first look."""
        self.ledger = Part(clock)
        self._books = books
        self._clock = clock
        self._every_seconds = every_seconds
        self._hosts: tuple[HostInventory, ...] = ()
        self._agents: dict[str, Part] = {}

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await self.look()
            await asyncio.sleep(self._every_seconds)

    async def look(self) -> None:
        """Look once; the log says when the ledger comes or goes."""
        try:
            self._hosts = await self._books.read(Reader.hosts)
        except LedgerAwayError as error:
            if self.ledger.become(PartState.DEGRADED):
                log.error("%s; pages say so until it answers", error)  # noqa: TRY400 - expected
        else:
            before = self.ledger.state
            if self.ledger.become(PartState.OK) and before is PartState.DEGRADED:
                log.info("the ledger answers again")
        self.agents()  # also while nobody asks, so that it is known since when

    def agents(self) -> list[AgentLook]:
        """Return what is known of each host's agent now.

        While the ledger is away nobody knows whether an agent reports.
        """
        now = self._clock()
        return [self._agent(host, now) for host in self._hosts]

    def _agent(self, host: HostInventory, now: datetime) -> AgentLook:
        age = max(now - host.observed_at, timedelta())
        known = self.ledger.state is PartState.OK
        silent = known and age > FRESH_FOR
        trouble = host.trouble is not None
        part = self._agents.setdefault(host.host_id, Part(self._clock))
        if known:
            part.become(PartState.DEGRADED if silent or trouble else PartState.OK)
        else:
            part.become(PartState.UNKNOWN)
        return AgentLook(
            state=part.state,
            since=part.since,
            age_seconds=age / timedelta(seconds=1),
            silent=silent,
            trouble=trouble,
            simulated=host.simulated,
        )
