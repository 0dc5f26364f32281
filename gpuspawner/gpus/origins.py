"""Where a process comes from: what the kernel says of the numbers that the driver lists.

The driver gives the host's process numbers to who is among the host's processes, and hides others'
from who is not (gpu mechanics 2.1 to 2.4). A number is used again once its process has ended: what
is remembered of one is believed only while its start time is the same.
"""

import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gpuspawner.domain.attribution import Origin
from gpuspawner.gpus.nvml_threads import Worker

# The kernel's own number for the first process namespace, the host's (linux/proc_ns.h).
_HOST_NAMESPACE: Final = "pid:[4026531836]"
_CONTAINER_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_KERNEL = re.compile(rb"kernel-([0-9A-Za-z-]{8,64})\.json")
_KERNEL_SECONDS: Final = 0.5
_MOST_PARENTS: Final = 16
_DEAD: Final = frozenset("ZXx")  # and not yet collected by its parent
_EXITING: Final = 0x4  # PF_EXITING (linux/sched.h)

_NOT_THE_HOSTS: Final = (
    "The agent is not among the host's processes, so that the driver hides theirs from it: run it "
    "on the host, or in a container with the host's process numbers (--pid=host)."
)
_HIDDEN: Final = (
    "The agent may not see other people's processes (/proc is mounted with hidepid): run it as "
    "root."
)


@dataclass(frozen=True, slots=True)
class _Stat:
    """What ``/proc/PID/stat`` says."""

    command: str
    is_ending: bool
    parent: int
    started: int


class Origins:
    """The processes of a host. Used by one thread."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        """Read ``/proc``."""
        self._proc = str(proc)
        self._known: dict[int, Origin] = {}
        self._kernels: dict[int, tuple[int, str | None]] = {}  # by number: its start, its kernel
        self._worker: Worker[dict[int, tuple[int, str | None]]] = Worker("notebook-kernels")

    def unavailable(self) -> str | None:
        """Return why nothing can be told of processes here; None if it can."""
        try:
            namespace = os.readlink(f"{self._proc}/self/ns/pid")
        except OSError as error:
            return f"The agent cannot tell whose processes it sees: {error}"
        if namespace != _HOST_NAMESPACE:
            return _NOT_THE_HOSTS
        return None if self._read(1, "stat") else _HIDDEN

    @staticmethod
    def ticks() -> int:
        """Return the time since the boot, as the start times of processes are given."""
        return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))

    def of(self, pids: Iterable[int], not_after: int | None = None) -> dict[int, Origin]:
        """Return what is known of these processes; one that has ended is not among them.

        Args:
            pids: the numbers.
            not_after: when they were listed (`ticks`): who started since has only got the number.
        """
        found: dict[int, Origin] = {}
        for pid in pids:
            stat = self._stat(pid)
            if stat is None or (not_after is not None and stat.started > not_after):
                continue
            origin = self._known.get(pid)
            if origin is None or (origin.started, origin.command) != (stat.started, stat.command):
                origin = self._look(pid, stat)
            if origin is not None:
                found[pid] = origin
        self._known = found
        self._ask_for_kernels(found)
        return {pid: self._with_kernel(origin) for pid, origin in found.items()}

    def _look(self, pid: int, stat: _Stat) -> Origin | None:
        group = self._read(pid, "cgroup")
        if group is None:
            return None
        ids = container_ids(group.decode("utf-8", "replace"))
        if not ids and stat.is_ending:
            return None  # the kernel has forgotten where it was, and the driver has not
        again = self._stat(pid)
        if again is None or again.started != stat.started or (not ids and again.is_ending):
            return None  # it has ended, and perhaps another has got the number while we read
        self._kernels.pop(pid, None)  # a program that was replaced by another may have another
        return Origin(pid=pid, started=stat.started, container_ids=ids, command=stat.command)

    # --- notebooks ------------------------------------------------------------------------

    def _with_kernel(self, origin: Origin) -> Origin:
        started, kernel_id = self._kernels.get(origin.pid, (-1, None))
        if kernel_id is None or started != origin.started:
            return origin
        return replace(origin, kernel_id=kernel_id)

    def _ask_for_kernels(self, present: dict[int, Origin]) -> None:
        """Find the kernels of who is new, in a thread that nobody has to wait for long.

        To read a command line takes a lock of the process's memory, which one that is stuck in the
        driver may hold for ever. Until it is read, the process has no kernel.
        """
        for pid in [pid for pid in self._kernels if pid not in present]:
            del self._kernels[pid]
        if self._worker.busy:
            return
        if self._worker.asked:
            self._kernels |= self._worker.result(0)  # it came late
        missing = [
            each
            for each in present.values()
            if each.container_ids and each.pid not in self._kernels
        ]
        if not missing:
            return
        self._worker.ask(lambda: {each.pid: (each.started, self._kernel(each)) for each in missing})
        try:
            self._kernels |= self._worker.result(_KERNEL_SECONDS)
        except TimeoutError:
            return

    def _kernel(self, origin: Origin) -> str | None:
        """Return the notebook's kernel that this is, or that started it in the same container."""
        pid = origin.pid
        for _ in range(_MOST_PARENTS):
            command_line = self._read(pid, "cmdline")
            match = _KERNEL.search(command_line) if command_line else None
            if match:
                return match[1].decode()
            stat = self._stat(pid)
            if stat is None:
                return None
            pid = stat.parent
            group = self._read(pid, "cgroup")
            if group is None:
                return None
            if container_ids(group.decode("utf-8", "replace"))[:1] != origin.container_ids[:1]:
                return None
        return None

    # --- reading --------------------------------------------------------------------------

    def _stat(self, pid: int) -> _Stat | None:
        text = self._read(pid, "stat")
        if text is None:
            return None
        # The name may itself have blanks and brackets: what follows comes after the last one.
        head, _, rest = text.decode("utf-8", "replace").rpartition(")")
        fields = rest.split()
        try:
            is_ending = fields[0] in _DEAD or bool(int(fields[6]) & _EXITING)
            return _Stat(head.partition("(")[2], is_ending, int(fields[1]), int(fields[19]))
        except (IndexError, ValueError):
            return None

    def _read(self, pid: int, name: str) -> bytes | None:
        try:
            handle = os.open(f"{self._proc}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                return os.read(handle, 65536)
            finally:
                os.close(handle)
        except OSError:
            return None  # it has ended


def container_ids(control_group: str) -> tuple[str, ...]:
    """Return the 64-digit names in a text of ``/proc/PID/cgroup``, the outermost first.

    Which of them are containers the engine knows; no part of the path before them says it, since
    every engine, driver and version spells that in its own way (gpu mechanics 2.2).
    """
    longest: list[str] = []
    for line in control_group.splitlines():
        names = _CONTAINER_ID.findall(line)
        if len(names) > len(longest):
            longest = names
    return tuple(longest)
