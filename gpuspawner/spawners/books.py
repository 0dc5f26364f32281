"""The lease of a spawner's server: find it, end it on evidence, or ask for its end."""

import asyncio
from collections.abc import Awaitable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from gpuspawner.domain.endings import why_ended
from gpuspawner.domain.leases import Evidence, Lease, ServerKey, State
from gpuspawner.domain.reasons import Code, Reason, reason
from gpuspawner.engines.look import Absent, EngineError, Look
from gpuspawner.ledger.store import LedgerAwayError
from gpuspawner.spawners.site import Site

# A create that was given up may still be carried out: the engine's own time limit and a margin.
LOOK_AGAIN_AFTER: Final = timedelta(seconds=150)
# How long the hub waits for a server's end to be written down; after that the agent does it.
STEP_PATIENCE_SECONDS: Final = 90.0


class ServerBooks:
    """The part of a spawner that keeps one server's lease. Nothing of it blocks the event loop."""

    engine_name: str
    log: Any
    _log_name: Any

    @property
    def key(self) -> ServerKey:
        """Whose server this is."""
        raise NotImplementedError

    @property
    def _site(self) -> Site:
        """What all spawners of the hub share."""
        raise NotImplementedError

    async def _tidy(self) -> None:
        """Remove what a server that ended by itself left behind."""
        raise NotImplementedError

    def _absence(self, lease: Lease) -> Evidence:
        """Return the best record of the end of a server that the engine does not have. Blocks."""
        raise NotImplementedError

    async def _living(self) -> Lease | None:
        return await self._site.books(self.key.lane, self._read_living)

    def _read_living(self) -> Lease | None:
        with self._site.broker.ledger.read() as books:
            return books.living_of_server(self.key)

    async def _close(self, look: Look, evidence: Evidence, looked_at: datetime) -> None:
        """Remove what a server left that ended by itself, then end its lease."""
        found: dict[str, Evidence] = {}
        if not isinstance(look, Absent):
            await self._tidy()
            found[look.run_id] = evidence
        await self._end_living(None, found, looked_at)

    async def _end_living(
        self, why: Reason | None, found: Mapping[str, Evidence], looked_at: datetime | None = None
    ) -> None:
        """End the server's lease by how its own container ended, else by how it is absent.

        Without ``why`` nobody asked for the end, and what the engine shows names it. A lease that
        was asked for after ``looked_at`` is a later start's, and none of this look's business.
        """
        lease = await self._living()
        if lease is None or (looked_at is not None and lease.requested_at > looked_at):
            return
        if lease.engine != self.engine_name:  # another engine's word counts, which the agent has
            await self._want_end(why or reason(Code.GIVEN_UP))
            return
        evidence = found.get(lease.run_id or "")
        absent = evidence is None
        if evidence is None:
            if lease.look_again_at is not None and self._site.now() < lease.look_again_at:
                return  # a create may still be under way at the engine
            evidence = await self._site.lanes.run(self.key.lane, self._absence, lease)
        why = why or why_ended(evidence, absent=absent)
        await self._site.books(
            self.key.lane, self._site.broker.end, lease.lease_id, why, evidence, self._site.now()
        )

    async def _want_end(self, why: Reason) -> None:
        lease = await self._living()
        if lease is not None:
            await self._site.books(self.key.lane, self._write_want_end, lease, why)

    def _write_want_end(self, lease: Lease, why: Reason) -> None:
        now = self._site.now()
        # Only where no container is known of may a create still be under way.
        may_come = lease.state is State.GRANTED and lease.run_id is None
        again_at = now + LOOK_AGAIN_AFTER if may_come else None
        self._site.broker.want_end(lease.lease_id, why, now, look_again_at=again_at)

    async def _or_log(self, step: Awaitable[None]) -> None:
        """Do what can be done now; what a part that is away prevents, the agent finds out."""
        try:
            async with asyncio.timeout(STEP_PATIENCE_SECONDS):
                await step
        except (LedgerAwayError, EngineError, TimeoutError) as error:
            self.log.warning("%s: left to the agent: %r", self._log_name, error)
        except Exception:
            self.log.exception("%s: left to the agent", self._log_name)

    def _in_background(self, call: Any, *args: Any) -> None:
        """Make a ledger call that a cancelled coroutine cannot wait for."""

        def seen(task: asyncio.Task[Any]) -> None:
            if not task.cancelled() and task.exception() is not None:
                self.log.warning("%s: left to the agent: %s", self._log_name, task.exception())

        asyncio.ensure_future(self._site.books(self.key.lane, call, *args)).add_done_callback(seen)
