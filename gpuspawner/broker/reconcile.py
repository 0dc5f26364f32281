"""The reconciler: what the engines run, against what the books say.

The guard of the agent goes from leases to containers. This goes the other way, from containers to
leases, so that nothing runs with a device that nobody knows of: late containers of grants that are
over are stopped, grants that the books lack are entered again, and what is foreign is shown, kept
clear of and never touched.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from gpuspawner.broker.broker import Broker
from gpuspawner.domain.attribution import Neighbour
from gpuspawner.domain.devices import HostId, HostInventory
from gpuspawner.domain.reconciliation import (
    EngineState,
    Found,
    Stray,
    Verdict,
    used_devices,
    verdict,
)
from gpuspawner.engines.look import EngineError, EngineUnknownError, Running, Runtime
from gpuspawner.ledger.store import LedgerAwayError

log = logging.getLogger(__name__)


class Reconciler:
    """One host's comparison. Calls block: it has the agent's own thread."""

    def __init__(
        self,
        broker: Broker,
        runtimes: Mapping[str, Runtime],
        host_id: str,
        our_hubs: Callable[[], frozenset[str]],
        clock: Callable[[], datetime],
    ) -> None:
        """Take the parts.

        Args:
            broker: the books.
            runtimes: the engines by their name in leases.
            host_id: this host.
            our_hubs: hubs that are known to keep their leases in these books, beside those that
                the books themselves name.
            clock: aware UTC.
        """
        self._broker = broker
        self._runtimes = runtimes
        self._host_id = host_id
        self._our_hubs = our_hubs
        self._clock = clock
        self._before: dict[str, dict[str, Stray]] = {}
        self._silent_since: dict[str, datetime] = {}
        self._present: dict[str, dict[str, Neighbour]] = {}

    @property
    def containers(self) -> dict[str, Neighbour]:
        """What was on this host in the last comparison, by its id."""
        found: dict[str, Neighbour] = {}
        for each in list(self._present.values()):
            found |= each
        return found

    def round(self) -> bool:
        """Compare once; False where an engine did not answer, of which nothing is known then.

        Raises:
            LedgerAwayError: the books cannot be read or written.
        """
        answered = [self._compare(name, runtime) for name, runtime in self._runtimes.items()]
        return all(answered)

    def _compare(self, engine: str, runtime: Runtime) -> bool:
        try:
            # First the list, then the books: a grant is written before its container is made.
            everything = runtime.everything()
            self._present[engine] = {
                found.run_id: Neighbour(name=found.name, tolerated=found.tolerated)
                for found in everything
            }
            engine_id = runtime.identity()
            strays = self._act_on_all(engine, runtime, engine_id, everything)
        except EngineError as error:
            self._note_state(engine, str(error))
            return False
        self._report(engine, strays)
        self._note_state(engine, None)
        return True

    def _act_on_all(
        self, engine: str, runtime: Runtime, engine_id: str | None, everything: Sequence[Found]
    ) -> list[Stray]:
        """Do what must be done about each, and return what is foreign.

        Raises:
            EngineUnknownError: the engine has fallen silent; asking on would take long.
        """
        with self._broker.ledger.read() as books:
            fences = {found.fence for found in everything if found.fence is not None}
            leases = books.leases_by_fence(fences) if fences else {}
            hubs = books.hub_ids() | self._our_hubs()
            inventory = {host.host_id: host for host in books.hosts()}.get(HostId(self._host_id))
        strays: list[Stray | None] = []
        for found in everything:
            lease = leases.get(found.fence) if found.fence is not None else None
            decided = verdict(found, lease, hubs)
            try:
                if self._is_settled(engine, runtime, engine_id, found, decided):
                    continue
            except LedgerAwayError:
                raise
            except EngineError as error:
                is_silent = isinstance(error, EngineUnknownError) and not error.answered
                if is_silent and not _answers(runtime):
                    raise
                log.warning("%s %s: %s; it is tried again", engine, found.name, error)
            except Exception:
                # One that nobody can make sense of must not leave the others uncompared.
                log.exception("%s %s: it could not be compared", engine, found.name)
            # Whatever stands against it: while it runs, nobody else gets what it has.
            strays.append(_stray(found, inventory))
        return [each for each in strays if each is not None]

    def _is_settled(
        self,
        engine: str,
        runtime: Runtime,
        engine_id: str | None,
        found: Found,
        decided: Verdict,
    ) -> bool:
        """Carry out what was decided; False where it stays without a lease.

        Raises:
            EngineError: it could not be done.
            LedgerAwayError: it could not be written down.
        """
        if decided is Verdict.CLEAR:
            log.warning(
                "%s %s is of a grant that is over (fence %s): it is stopped and removed",
                engine, found.name, found.fence,
            )  # fmt: skip
            runtime.clear_run(found.run_id)
        if decided is not Verdict.READOPT:
            return decided is not Verdict.REPORT
        look = runtime.look_at(found.run_id)
        if not isinstance(look, Running):
            return True  # it ended meanwhile; the next look clears it
        now = self._clock()
        lease = self._broker.readopt(found, look.started_at, engine, engine_id, now)
        if lease is not None:
            log.warning(
                "%s %s ran without a lease: lease %d is entered again from what it carries",
                engine, found.name, lease.lease_id,
            )  # fmt: skip
        return lease is not None

    def _report(self, engine: str, strays: Sequence[Stray]) -> None:
        """Write down what is foreign; one that a list lacks is believed gone at the second look."""
        present = {each.run_id: each for each in strays}
        before = self._before.get(engine)
        if before is None:
            with self._broker.ledger.read() as books:
                known = books.strays().get((self._host_id, engine), [])
            before = {each.run_id: each for each in known}
        for each in present.values():
            if each.run_id not in before:
                log.warning("%s %s uses devices without a lease", engine, each.name)
        self._before[engine] = present
        shown = {**before, **present}
        self._broker.report_strays(self._host_id, engine, shown.values(), self._clock())

    def _note_state(self, engine: str, trouble: str | None) -> None:
        now = self._clock()
        if trouble is None:
            self._silent_since.pop(engine, None)
        elif engine not in self._silent_since:
            self._silent_since[engine] = self._noted_silence(engine) or now
        self._broker.note_engine(
            EngineState(
                host_id=self._host_id,
                engine=engine,
                answered_at=now if trouble is None else None,
                silent_since=self._silent_since.get(engine),
                detail=trouble or "",
            )
        )

    def _noted_silence(self, engine: str) -> datetime | None:
        """Return since when an engine is silent by the books: of an earlier agent, too."""
        with self._broker.ledger.read() as books:
            states = books.engine_states()
        return next(
            (
                each.silent_since
                for each in states
                if (each.host_id, each.engine) == (self._host_id, engine)
            ),
            None,
        )


def _answers(runtime: Runtime) -> bool:
    """Whether an engine that left one call without an answer gives others: then it is that one."""
    try:
        runtime.identity()
    except EngineError:
        return False
    return True


def _stray(found: Found, inventory: HostInventory | None) -> Stray | None:
    """Return what is to be shown of a container; None where it has no device of this host."""
    devices = used_devices(found.devices, inventory) if found.runs else ()
    if devices == ():
        return None
    return Stray(run_id=found.run_id, name=found.name, devices=devices)
