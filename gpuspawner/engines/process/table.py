"""The machine's processes as ``/proc`` shows them (proc(5)), each told from a reuse of its number.

A process is its number together with its start time: the kernel hands numbers out again.
"""

import errno
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Final, Self

from gpuspawner.engines.look import EngineUnknownError

_ZOMBIE: Final = frozenset({"Z", "X", "x"})
_GONE: Final = (FileNotFoundError, ProcessLookupError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One process among all that ever had its number.

    ``started_ticks`` is field 22 of ``/proc/<pid>/stat``: clock ticks between the machine's boot
    and the start of the process; ``boot`` is the beginning of that boot's id.
    """

    pid: int
    started_ticks: int
    boot: str

    @property
    def run_id(self) -> str:
        """The identity as a text for the books."""
        return f"pid:{self.pid}:{self.started_ticks}:{self.boot}"

    @classmethod
    def parse(cls, run_id: str) -> Self:
        """Read what `run_id` gave.

        Raises:
            ValueError: it is something else, such as a container's id.
        """
        kind, *parts = run_id.split(":")
        if kind != "pid" or len(parts) != 3 or not (parts[0].isdigit() and parts[1].isdigit()):
            raise ValueError(f"expected pid:<number>:<start time>:<boot>, got {run_id!r}")
        return cls(pid=int(parts[0]), started_ticks=int(parts[1]), boot=parts[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process as it was at one look. A zombie has ended and waits for its parent to notice.

    One whose first thread has ended shows as zombie too while its other threads run on: that is
    none.
    """

    identity: Identity
    parent_pid: int
    is_zombie: bool

    @property
    def pid(self) -> int:
        """Its number at present."""
        return self.identity.pid


class ProcessTable:
    """Reads and signals processes. Keeps nothing but the boot's id; safe in several threads."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        """Read below ``root``."""
        self._root = root

    def find(self, identity: Identity) -> Process | None:
        """Return a process, or None when it is surely gone (a zombie is returned).

        Raises:
            EngineUnknownError: ``/proc`` cannot be read.
        """
        process = self._read(identity.pid)
        if process is None:
            self._check_that_it_is_ours()
        return process if process is not None and process.identity == identity else None

    def of_pid(self, pid: int) -> Process | None:
        """Return the process that has this number now.

        Raises:
            EngineUnknownError: ``/proc`` cannot be read.
        """
        return self._read(pid)

    def runs(self, identity: Identity) -> bool:
        """Whether it is there and no zombie.

        Raises:
            EngineUnknownError: ``/proc`` cannot be read.
        """
        process = self.find(identity)
        return process is not None and not process.is_zombie

    def everybody(self) -> list[Process]:
        """Return all processes that can be seen, by number.

        Raises:
            EngineUnknownError: ``/proc`` cannot be read, or is not that of our own processes.
        """
        self._check_that_it_is_ours()
        try:
            pids = sorted(int(name) for name in os.listdir(self._root) if name.isdigit())
        except OSError as error:
            raise EngineUnknownError(f"the list of processes cannot be read: {error}") from error
        seen = (self._read(pid, may_be_hidden=True) for pid in pids)
        return [process for process in seen if process is not None]

    def environment(self, process: Process) -> dict[bytes, bytes]:
        """Return the variables that a process began with; empty for one we may not look into.

        We may look into our own user's processes, as root into all: what others run is nothing
        that a hub of this user started.
        """
        try:
            text = (self._root / str(process.pid) / "environ").read_bytes()
        except (PermissionError, *_GONE):
            return {}
        except OSError as error:
            raise EngineUnknownError(f"process {process.pid} cannot be read: {error}") from error
        pairs = (item.partition(b"=") for item in text.split(b"\0") if item)
        return {name: value for name, _, value in pairs}

    def with_descendants(self, found: Iterable[Process]) -> set[Process]:
        """Add all that are below these processes, whatever their environment says."""
        children: dict[int, list[Process]] = {}
        for process in self.everybody():
            children.setdefault(process.parent_pid, []).append(process)
        family: set[Process] = set()
        todo = list(found)
        while todo:
            process = todo.pop()
            if process not in family:
                family.add(process)
                todo.extend(children.get(process.pid, ()))
        return family

    def started_at(self, identity: Identity) -> datetime:
        """Return when a process of this boot began, in aware UTC.

        From ``btime`` of ``/proc/stat`` and the start ticks: a second or so exact.
        """
        try:
            lines = (self._root / "stat").read_text().splitlines()
            boot = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
        except (OSError, StopIteration, ValueError) as error:
            raise EngineUnknownError(f"the time of the boot cannot be read: {error}") from error
        ticks_per_second = os.sysconf("SC_CLK_TCK")
        return datetime.fromtimestamp(boot + identity.started_ticks / ticks_per_second, UTC)

    def send(self, identity: Identity, number: signal.Signals) -> None:
        """Signal a process if it is still the one that is meant; never ourselves or our parents.

        One that we may not signal is left alone: whoever waits for its end sees it living.
        """
        if identity.pid in self._never_signalled():
            return
        try:
            handle = _handle_of(identity.pid)
        except ProcessLookupError:
            return
        try:
            # The handle stays with one process: after this look the number cannot change hands.
            if self.find(identity) is None:
                return
            if handle is None:
                os.kill(identity.pid, number)
            else:
                signal.pidfd_send_signal(handle, number)
        except (ProcessLookupError, PermissionError):
            return
        finally:
            if handle is not None:
                os.close(handle)

    def _never_signalled(self) -> set[int]:
        never = {0, 1}
        pid = os.getpid()
        while pid not in never:
            never.add(pid)
            process = self._read(pid)
            pid = process.parent_pid if process is not None else 0
        return never

    def _check_that_it_is_ours(self) -> None:
        """Raise unless we see ourselves: an unmounted ``/proc`` would show nobody at all."""
        if self._read(os.getpid()) is None:
            raise EngineUnknownError(f"{self._root} does not show the processes of this machine")

    def _read(self, pid: int, *, may_be_hidden: bool = False) -> Process | None:
        try:
            text = (self._root / str(pid) / "stat").read_text(errors="replace")
        except _GONE:
            return None
        except OSError as error:
            if may_be_hidden and isinstance(error, PermissionError):
                return None  # somebody else's, on a machine that hides them (hidepid)
            raise EngineUnknownError(f"process {pid} cannot be read: {error}") from error
        return parse_stat(pid, text, self._boot)

    @cached_property
    def _boot(self) -> str:
        try:
            return (self._root / "sys/kernel/random/boot_id").read_text().strip()[:8]
        except OSError as error:
            raise EngineUnknownError(f"the id of this boot cannot be read: {error}") from error


def parse_stat(pid: int, text: str, boot: str) -> Process:
    """Read a line of ``/proc/<pid>/stat``. The name in it may hold anything, ``)`` too.

    Raises:
        EngineUnknownError: it is not such a line.
    """
    fields = text.rpartition(")")[2].split()
    try:
        state, parent, threads, started = fields[0], *(int(fields[at]) for at in (1, 17, 19))
    except (IndexError, ValueError) as error:
        raise EngineUnknownError(f"process {pid} has an odd stat line: {text[:80]!r}") from error
    identity = Identity(pid=pid, started_ticks=started, boot=boot)
    is_zombie = state in _ZOMBIE and threads <= 1
    return Process(identity=identity, parent_pid=parent, is_zombie=is_zombie)


def _handle_of(pid: int) -> int | None:
    """Return a descriptor that means this process and no later one; None before Linux 5.3."""
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            return None
        raise
