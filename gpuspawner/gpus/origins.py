"""Where a process comes from: what the kernel says of the numbers that the driver lists.

The driver gives the host's process numbers, so they mean something only where ``/proc`` is the
host's (gpu mechanics 2.1 to 2.4). A number is used again once its process has ended: what is
remembered of one is believed only while its start time is the same.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuspawner.domain.attribution import Origin

# The kernel's own number for the first process namespace, the host's (linux/proc_ns.h).
_HOST_NAMESPACE: Final = "pid:[4026531836]"
_CONTAINER_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_KERNEL = re.compile(rb"kernel-([0-9A-Za-z-]{8,64})\.json")
_MOST_PARENTS: Final = 16
_GONE: Final = frozenset("ZXx")  # dead, and not yet collected by its parent

_NOT_THE_HOSTS: Final = (
    "The agent sees its own container's processes and not the host's: run it on the host, or in a "
    "container with the host's process numbers (--pid=host), or name the host's /proc with --proc."
)


@dataclass(frozen=True, slots=True)
class _Stat:
    """What ``/proc/PID/stat`` says."""

    command: str
    state: str
    parent: int
    started: int


class Origins:
    """The processes of a host. Used by one thread."""

    def __init__(self, proc: Path | None = None) -> None:
        """Read ``/proc``, or another place where the host's is mounted."""
        self._proc = str(proc or "/proc")
        self._is_named = proc is not None
        self._known: dict[int, Origin] = {}

    def unavailable(self) -> str | None:
        """Return why the driver's process numbers cannot be looked up here; None if they can."""
        if self._is_named:
            there = os.path.exists(f"{self._proc}/1/stat")
            return None if there else f"There is no host's /proc at {self._proc}."
        try:
            namespace = os.readlink(f"{self._proc}/self/ns/pid")
        except OSError as error:
            return f"The agent cannot tell whose processes it sees: {error}"
        return None if namespace == _HOST_NAMESPACE else _NOT_THE_HOSTS

    def of(self, pids: Iterable[int]) -> dict[int, Origin]:
        """Return what is known of these processes; one that has ended is not among them."""
        found: dict[int, Origin] = {}
        for pid in pids:
            stat = self._stat(pid)
            if stat is None:
                continue
            origin = self._known.get(pid)
            if origin is None or (origin.started, origin.command) != (stat.started, stat.command):
                origin = self._look(pid, stat)
            if origin is not None:
                found[pid] = origin
        self._known = found
        return found

    def _look(self, pid: int, stat: _Stat) -> Origin | None:
        group = self._read(pid, "cgroup")
        if group is None:
            return None
        ids = container_ids(group.decode("utf-8", "replace"))
        if not ids and stat.state in _GONE:
            return None  # the kernel has forgotten where it was, and the driver has not
        kernel_id = self._kernel(pid, stat, ids)
        again = self._stat(pid)
        if again is None or again.started != stat.started:
            return None  # another process has got the number while we read
        return Origin(
            pid=pid, started=stat.started, container_ids=ids, command=stat.command,
            kernel_id=kernel_id,
        )  # fmt: skip

    def _kernel(self, pid: int, stat: _Stat, ids: tuple[str, ...]) -> str | None:
        """Return the notebook's kernel that this is, or that started it in the same container."""
        if not ids:
            return None
        for _ in range(_MOST_PARENTS):
            command_line = self._read(pid, "cmdline")
            match = _KERNEL.search(command_line) if command_line else None
            if match:
                return match[1].decode()
            pid = stat.parent
            parent, group = self._stat(pid), self._read(pid, "cgroup")
            if parent is None or group is None:
                return None
            if container_ids(group.decode("utf-8", "replace"))[:1] != ids[:1]:
                return None
            stat = parent
        return None

    def _stat(self, pid: int) -> _Stat | None:
        text = self._read(pid, "stat")
        if text is None:
            return None
        # The name may itself have blanks and brackets: what follows comes after the last one.
        head, _, rest = text.decode("utf-8", "replace").rpartition(")")
        fields = rest.split()
        try:
            return _Stat(head.partition("(")[2], fields[0], int(fields[1]), int(fields[19]))
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
