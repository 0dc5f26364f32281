"""What all spawners of one hub share: ledger, engine, lanes, limits. Made once per hub.

JupyterHub makes a spawner object per server and hands it nothing of ours; the one place that all
of them reach is the hub's settings, so the site hangs there and nowhere else.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from gpuspawner.broker.broker import Broker
from gpuspawner.domain.leases import Claim, Lease
from gpuspawner.domain.policy import Policy
from gpuspawner.domain.reasons import Code, RefusedError, reason
from gpuspawner.engines.docker.client import DockerEngine
from gpuspawner.engines.lanes import Lanes
from gpuspawner.ledger.store import Ledger, LedgerAwayError
from gpuspawner.steps import UNWATCHED, Steps

Result = TypeVar("Result")

_SETTING: Final = "gpuspawner_site"
SLOT_SECONDS: Final = 60
# Longer than a write waits for others, shorter than a start waits for a place.
BOOKS_SECONDS: Final = 45


class Site:
    """The hub's side of the product."""

    def __init__(
        self,
        *,
        hub_id: str,
        policy: Policy,
        ledger: Ledger,
        engine: DockerEngine,
        concurrent_starts: int,
        engine_threads: int = 8,
        steps: Steps = UNWATCHED,
    ) -> None:
        """Take the parts; nothing is opened or asked yet."""
        self.hub_id = hub_id
        self.policy = policy
        self.broker = Broker(ledger, actor="hub")
        self.engine = engine
        self.steps = steps
        self.lanes = Lanes(engine_threads, "engine")
        # Pulls have no time limit of their own (docker-py gives them none): they wait for nobody
        # but other pulls.
        self.pulls = Lanes(3, "pull")
        self.starts = asyncio.Semaphore(concurrent_starts)
        self._books = Lanes(4, "ledger")
        self._published = False

    @staticmethod
    def now() -> datetime:
        """The clock of the hub's side, in aware UTC."""
        return datetime.now(UTC)

    async def books(self, lane: str, call: Callable[..., Result], *args: object) -> Result:
        """Make a ledger call in a thread, after the earlier ones of the same server."""
        return await self._books.run(lane, call, *args)

    async def books_in_slot(self, lane: str, call: Callable[..., Result], *args: object) -> Result:
        """Make a ledger call while holding a place, which others need who start without books.

        Raises:
            LedgerAwayError: it could not be made, or a database that hangs did not answer in time;
                then it may still be carried out.
        """
        try:
            async with asyncio.timeout(BOOKS_SECONDS):
                return await self.books(lane, call, *args)
        except TimeoutError:
            raise LedgerAwayError(f"the ledger did not answer in {BOOKS_SECONDS} s") from None

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold one of the places for starts at the engine.

        Raises:
            RefusedError: none came free in time.
        """
        try:
            async with asyncio.timeout(SLOT_SECONDS):
                await self.starts.acquire()
        except TimeoutError:
            detail = f"other servers are being started, and none was done in {SLOT_SECONDS} s"
            raise RefusedError(reason(Code.START_FAILED, detail=detail)) from None
        try:
            yield
        finally:
            self.starts.release()

    async def request(self, claim: Claim) -> Lease:
        """Ask the broker for a lease, after making this hub's policy the published one."""
        return await self.books(claim.key.lane, self._request, claim)

    def publish(self) -> None:
        """Make this hub's policy the one that everybody reads. Blocks."""
        if not self._published:
            self.broker.publish(self.policy, self.hub_id, self.now())
            self._published = True

    def _request(self, claim: Claim) -> Lease:
        self.publish()
        return self.broker.request(claim, self.now())


def site_of(settings: MutableMapping[str, Any], make: Callable[[], Site]) -> Site:
    """Return the hub's one site, made at the first call."""
    if _SETTING not in settings:
        settings[_SETTING] = make()
    site = settings[_SETTING]
    assert isinstance(site, Site)
    return site
