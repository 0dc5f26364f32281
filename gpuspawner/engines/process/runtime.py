"""The server of a lease as processes of this machine, and the end of all of them."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from gpuspawner.domain.leases import Evidence, Lease, ServerKey, Source
from gpuspawner.domain.reconciliation import Found
from gpuspawner.engines.look import Absent, EngineUnknownError, Finished, Look, Made, Running
from gpuspawner.engines.process import marks
from gpuspawner.engines.process.table import Identity, Process, ProcessTable
from gpuspawner.steps import UNWATCHED, Steps

STOP_GRACE_SECONDS: Final = 10.0
LEFTOVER_GRACE_SECONDS: Final = 2.0
KILL_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The processes of one server: itself, if it is there, and all that it started."""

    leader: Process | None = None
    waits: bool = False  # made, and not let go yet (see `gpuspawner.engines.process.child`)
    members: frozenset[Process] = frozenset()


class ProcessRuntime:
    """Looks at processes by the lease's run id where it is known, by our marks otherwise.

    A lease whose server is gone while processes of it live on is *finished*: an end needs
    evidence that its server does not run (promise P2), and that is what the leftovers show. Taken
    for running, they would keep a dead server's lease until somebody culls it, and the person
    from a new start. They hold what the lease held all the same, so whoever ends the lease clears
    it first.
    """

    def __init__(self, table: ProcessTable | None = None, steps: Steps = UNWATCHED) -> None:
        """Work on this machine's processes."""
        self.table = table or ProcessTable()
        self._steps = steps

    def look(self, lease: Lease) -> Look:
        """Say what runs under a lease.

        A process leaves no record of its end: where nobody saw it, the time when it was last seen
        alive stands in.

        Raises:
            EngineUnknownError: nothing is known.
        """
        if lease.run_id is not None:
            look = self.look_at_process(_identity(lease.run_id))
            if look is not None:
                return look
        family = self.family_of_lease(lease)
        if family.leader is not None:
            return self.running(family.leader, waits=family.waits)
        if lease.run_id is None or lease.running_at is None:
            return Absent(evidence=Evidence(source=Source.NEVER_RAN))
        seen = max(filter(None, (lease.last_seen_at, lease.running_at)))
        evidence = Evidence(source=Source.LAST_SEEN, finished_at=seen)
        return Finished(run_id=lease.run_id, evidence=evidence)

    def clear(self, lease: Lease) -> None:
        """End every process of a lease. Repeating it is harmless.

        Raises:
            EngineUnknownError: they cannot be seen, or one of them does not end.
        """
        with self._steps.around("process:end"):
            self.end(lambda: self.family_of_lease(lease))

    def everything(self) -> Sequence[Found]:
        """Return the servers' own processes that have a lease; others hold nothing of ours.

        Raises:
            EngineUnknownError: they cannot be seen.
        """
        found = []
        for process in self.table.everybody():
            environment = {} if process.is_zombie else self.table.environment(process)
            whose = marks.key_and_fence_of(environment)
            if whose is None or not marks.is_leader(environment, process.pid):
                continue
            if _is_in_a_container(process.pid):
                continue  # whoever works there may call a process what he likes
            names = os.fsdecode(environment.get(b"GPU_UUIDS", b""))
            found.append(
                Found(
                    run_id=process.identity.run_id,
                    name=f"process {process.pid}",
                    runs=True,
                    made_at=self.table.started_at(process.identity),
                    devices=tuple(names.split(",")) if names else (),
                    attached=False,
                    key=whose[0],
                    fence=whose[1],
                )
            )
        return found

    def look_at(self, run_id: str) -> Look | None:
        """Look at a process by its run id.

        Raises:
            EngineUnknownError: nothing is known.
        """
        return self.look_at_process(_identity(run_id))

    def clear_run(self, run_id: str) -> None:
        """End a process and all that it started.

        Raises:
            EngineUnknownError: they cannot be seen, or one of them does not end.
        """
        leader = _identity(run_id)
        process = self.table.find(leader)
        mark = marks.lease_mark(self.table.environment(process)) if process is not None else None
        with self._steps.around("process:end"):
            self.end(
                lambda: self._family(
                    lambda environment: mark is not None and marks.lease_mark(environment) == mark,
                    leader,
                )
            )

    def identity(self) -> str | None:
        """Processes are this machine's, which needs no name here."""
        return None

    def look_at_process(self, identity: Identity) -> Look | None:
        """Return how one process runs; None when it does not.

        Raises:
            EngineUnknownError: nothing is known.
        """
        process = self.table.find(identity)
        if process is None or process.is_zombie:
            return None
        # One that we may not look into is taken for running, which frees nothing.
        return self.running(process, waits=marks.is_waiting(self.table.environment(process)))

    def running(self, process: Process, *, waits: bool) -> Look:
        """Say of a living process that it is made, or since when it runs."""
        run_id = process.identity.run_id
        if waits:
            return Made(run_id=run_id)
        return Running(run_id=run_id, started_at=self.table.started_at(process.identity))

    def family_of_server(self, key: ServerKey, leader: Identity | None = None) -> Family:
        """Return the processes of a server, under whatever lease or none.

        Args:
            key: the server.
            leader: the server's own process where it is known, whatever its environment says.

        Raises:
            EngineUnknownError: they cannot be seen.
        """
        return self._family(lambda environment: marks.is_of_server(environment, key), leader)

    def family_of_lease(self, lease: Lease) -> Family:
        """Return the processes of a lease.

        Raises:
            EngineUnknownError: they cannot be seen.
        """
        leader = _identity(lease.run_id) if lease.run_id is not None else None
        return self._family(lambda environment: marks.is_of_lease(environment, lease), leader)

    def end(self, family: Callable[[], Family], grace_seconds: float = STOP_GRACE_SECONDS) -> None:
        """End a server and all that it started; look again until nothing is left. Blocks.

        First the server alone is asked (SIGTERM), since it ends its kernels in order; then the
        rest is, and last of all killed.

        Args:
            family: looks at what there is now.
            grace_seconds: for the server to end in order; 0 kills at once.

        Raises:
            EngineUnknownError: they cannot be seen, or one of them does not end.
        """
        first = family()
        known = set(first.members)
        if first.leader is not None and grace_seconds > 0 and not first.waits:
            leader = first.leader.identity
            self.table.send(leader, signal.SIGTERM)
            _until(lambda: not self.table.runs(leader), grace_seconds)
            if self._ends(family, known, signal.SIGTERM, LEFTOVER_GRACE_SECONDS):
                return
        if not self._ends(family, known, signal.SIGKILL, KILL_SECONDS):
            left = ", ".join(str(process.pid) for process in self._living(known))
            raise EngineUnknownError(f"processes do not end: {left}", answered=True)

    def _ends(
        self,
        family: Callable[[], Family],
        known: set[Process],
        number: signal.Signals,
        seconds: float,
    ) -> bool:
        """Signal each process of a family once, newcomers too, until none is left or time is up."""
        signalled: set[Identity] = set()

        def look() -> bool:
            known.update(family().members)
            living = self._living(known)
            for process in living:
                if process.identity not in signalled:
                    self.table.send(process.identity, number)
                    signalled.add(process.identity)
            return not living

        return _until(look, seconds)

    def _living(self, known: set[Process]) -> list[Process]:
        return [process for process in known if self.table.runs(process.identity)]

    def _family(
        self, belongs: Callable[[dict[bytes, bytes]], bool], known: Identity | None
    ) -> Family:
        leader, waits, found = None, False, []
        for process in self.table.everybody():
            if process.is_zombie:
                continue
            environment = self.table.environment(process)
            is_known = process.identity == known
            if not (is_known or belongs(environment)):
                continue
            found.append(process)
            waiting = marks.is_waiting(environment)
            if is_known or marks.is_leader(environment, process.pid) or (waiting and not leader):
                leader, waits = process, waiting
        if not found:
            return Family()
        members = frozenset(self.table.with_descendants(found))
        return Family(leader=leader, waits=waits, members=members)


def _is_in_a_container(pid: int) -> bool:
    """Whether a process counts its numbers in another way than we do."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") != os.readlink("/proc/self/ns/pid")
    except OSError:
        return False


def _identity(run_id: str) -> Identity:
    try:
        return Identity.parse(run_id)
    except ValueError as error:
        raise EngineUnknownError(f"the lease is no process's: {error}") from error


def _until(look: Callable[[], bool], seconds: float) -> bool:
    """Look until it is so, or the time is up; the last look decides."""
    deadline = time.monotonic() + seconds
    pause = 0.01
    while not look():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(pause * 1.5, 0.2)
    return True
