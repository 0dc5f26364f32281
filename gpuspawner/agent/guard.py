"""Looks at the server of each living lease, and ends leases on what the engine shows."""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from gpuspawner.broker.broker import Broker, StaleGrantError
from gpuspawner.domain.devices import DeviceUUID, HostId
from gpuspawner.domain.endings import Step, next_step, why_ended
from gpuspawner.domain.leases import Evidence, Lease, Source, State
from gpuspawner.domain.reasons import Code, Reason, reason
from gpuspawner.domain.reconciliation import Found
from gpuspawner.engines.look import (
    Absent,
    EngineError,
    EngineUnknownError,
    Finished,
    Look,
    Running,
    Runtime,
)
from gpuspawner.ledger.store import LedgerAwayError

# Often enough to stand in for a finish time that the engine has forgotten.
SEEN_EVERY: Final = timedelta(seconds=30)

log = logging.getLogger(__name__)


class Guard:
    """One host's guard. Calls block: it has the agent's own thread."""

    def __init__(
        self,
        broker: Broker,
        runtimes: Mapping[str, Runtime],
        host_id: str,
        clock: Callable[[], datetime],
    ) -> None:
        """Take the parts; ``runtimes`` are by the engine's name in leases."""
        self._broker = broker
        self._runtimes = runtimes
        self._host_id = host_id
        self._clock = clock
        self._away: set[str] = set()
        self._seen_at: datetime | None = None
        self._absent: set[int] = set()  # leases whose server was not there at the last look

    def round(self) -> bool:
        """Look at every lease of this host once; False where an engine is silent.

        Raises:
            LedgerAwayError: the books cannot be read.
        """
        seen: dict[str, dict[tuple[str, int], Found]] = {}
        silent: set[str] = set()
        for engine, runtime in self._runtimes.items():
            try:
                seen[engine] = _by_grant(runtime.everything())
            except EngineError as error:
                silent.add(engine)
                self._note_away(engine, error)
        with self._broker.ledger.read() as books:
            mine = {host.host_id: host.devices for host in books.hosts()}.get(
                HostId(self._host_id), ()
            )
            uuids = {device.uuid for device in mine}
            leases = [lease for lease in books.holding() if self._is_here(lease, uuids)]
        alive: list[int] = []
        for lease in leases:
            if lease.engine in silent or lease.engine not in self._runtimes:
                continue
            try:
                if _runs_as_the_books_say(lease, seen[lease.engine]):
                    alive.append(lease.lease_id)
                    self._absent.discard(lease.lease_id)
                    continue
                look = self._look(lease, silent)
                if look is None or not self._is_sure(lease, look):
                    continue
                if isinstance(look, Running):
                    alive.append(lease.lease_id)
                self._act(lease, look)
            except EngineError as error:
                # This one is stuck, or the engine failed this call: the others go on.
                log.warning("lease %d: %s; it is tried again", lease.lease_id, error)
            except LedgerAwayError:
                raise
            except Exception:
                # One lease that nobody can make sense of must not leave the others unguarded.
                log.exception("lease %d: looking at it failed; it is tried again", lease.lease_id)
        for engine in self._away - silent:
            log.info("engine %s answers again", engine)
        self._away = silent
        self._absent &= {lease.lease_id for lease in leases}
        self._note_alive(alive)
        return not silent

    def _is_sure(self, lease: Lease, look: Look) -> bool:
        """Whether a look may be believed: "there is none" only at the second one.

        Where it was looked for in the engine's list, that may have been short; where it ran, its
        end should be on record. An engine that has such a record is believed at once, and so is
        one that denies by its id what is to end.
        """
        told_by_absence = isinstance(look, Absent) and look.evidence.source is not Source.EVENTS
        is_denied = lease.run_id is not None and lease.state is not State.RUNNING
        if is_denied or not told_by_absence:
            self._absent.discard(lease.lease_id)
            return True
        if lease.lease_id in self._absent:
            return True
        self._absent.add(lease.lease_id)
        return False

    def _look(self, lease: Lease, silent: set[str]) -> Look | None:
        """Look at one server; None when its engine is silent, which is then asked no more."""
        try:
            return self._runtimes[lease.engine].look(lease)
        except EngineUnknownError as error:
            if error.answered:
                raise
            silent.add(lease.engine)
            self._note_away(lease.engine, error)
            return None

    def _act(self, lease: Lease, look: Look) -> None:
        over = isinstance(look, Finished | Absent)
        ended_at = look.evidence.finished_at if isinstance(look, Finished | Absent) else None
        now = self._clock()
        step = next_step(
            lease,
            running_since=look.started_at if isinstance(look, Running) else None,
            over=over,
            absent=isinstance(look, Absent),
            ended_at=ended_at,
            now=now,
        )
        if step is Step.RUN and isinstance(look, Running):
            try:
                if lease.run_id is None:  # the one who made it did not live to record that
                    engine_id = self._runtimes[lease.engine].identity()
                    self._broker.bind(lease, look.run_id, now, engine_id)
                self._broker.run(lease, look.started_at, now)
            except StaleGrantError:
                log.debug("lease %d changed while it was looked at", lease.lease_id)
        elif step is Step.CLEAR:
            self._clear_and_end(lease, look)

    def _clear_and_end(self, lease: Lease, look: Look) -> None:
        """Remove first: a container that names a device must not outlive its lease."""
        runtime = self._runtimes[lease.engine]
        evidence = _proof(look)
        if not isinstance(look, Absent):
            runtime.clear(lease)
            after = runtime.look(lease)
            if not isinstance(after, Absent):
                log.warning("lease %d: its server is still there; tried again", lease.lease_id)
                return
            evidence = evidence or after.evidence
        assert evidence is not None
        why = self._why(lease, look, evidence)
        self._broker.end(lease.lease_id, why, evidence, self._clock())
        log.info(
            "lease %d of %s ended: %s", lease.lease_id, lease.key.user, (lease.reason or why).code
        )

    @staticmethod
    def _why(lease: Lease, look: Look, evidence: Evidence) -> Reason:
        if lease.state is State.GRANTED and evidence.source is Source.NEVER_RAN:
            return reason(Code.START_EXPIRED, seconds=lease.start_seconds)
        return why_ended(evidence, absent=isinstance(look, Absent))

    def _is_here(self, lease: Lease, uuids: set[DeviceUUID]) -> bool:
        """Whether a lease is of this host, also where the host had another name at its grant."""
        return any(
            item.host_id == self._host_id or item.device_uuid in uuids for item in lease.slices
        )

    def _note_away(self, engine: str, error: EngineError) -> None:
        if engine not in self._away:
            log.warning("engine %s does not answer; its leases stay held: %s", engine, error)

    def _note_alive(self, alive: list[int]) -> None:
        now = self._clock()
        if self._seen_at is None or now - self._seen_at >= SEEN_EVERY:
            self._broker.seen_alive(alive, now)
            self._seen_at = now


def _by_grant(everything: Sequence[Found]) -> dict[tuple[str, int], Found]:
    return {
        (found.key.hub_id, found.fence): found
        for found in everything
        if found.key is not None and found.fence is not None
    }


def _runs_as_the_books_say(lease: Lease, seen: Mapping[tuple[str, int], Found]) -> bool:
    """Whether the engine's list already shows all that a look would."""
    found = seen.get((lease.key.hub_id, lease.fence or 0))
    return (
        lease.state is State.RUNNING
        and found is not None
        and found.runs
        and found.run_id == lease.run_id
    )


def _proof(look: Look) -> Evidence | None:
    """Return how the server ended; None while only its removal will show that."""
    if isinstance(look, Finished | Absent):
        return look.evidence
    if isinstance(look, Running):
        return None
    return Evidence(source=Source.NEVER_RAN)
