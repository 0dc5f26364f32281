"""The life of our two processes: end with the hub that started them, and never run twice.

JupyterHub ends when a managed service is not up at its start, takes an orphan of an earlier hub
for its own, and after a SIGKILL leaves its services behind (hub facts H1). So each of ours ends by
itself when its parent is gone, and holds one lock. The agent waits in threads, the service on its
loop (`gpuspawner.service.life`); what they wait for is here.

Standard library only: this is imported before anything slow.
"""

import ctypes
import fcntl
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

PARENT_CHECK_SECONDS: Final = 1.0
# The hub that starts a managed process, told so that one whose hub dies at that moment knows it.
HUB_PID_VARIABLE: Final = "GPUSPAWNER_HUB_PID"
LOCK_RETRY_SECONDS: Final = 2.0
_PR_SET_PDEATHSIG: Final = 1

log = logging.getLogger(__name__)


class Parent:
    """The process that started this one. Gone when this one belongs to somebody else."""

    def __init__(self, pid: int, look: Callable[[], int] = os.getppid) -> None:
        """Remember who it is."""
        self._pid = pid
        self._look = look

    @property
    def gone(self) -> bool:
        """Whether it has ended."""
        return self._look() != self._pid


def end_with_parent() -> Parent:
    """Have the kernel end this process (SIGTERM) when the one that started it is gone.

    Call it first of all, and watch what it returns: the signal is lost if the parent ended before
    it was asked for, and only Linux has it. A hub that ended before we could look at all is no
    ancestor of ours any more; `HUB_PID_VARIABLE` says which one it was.
    """
    parent = Parent(os.getppid())
    if sys.platform == "linux":
        hub = os.environ.get(HUB_PID_VARIABLE, "")
        if hub.isdigit() and int(hub) not in _ancestors():
            parent = Parent(int(hub))
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    return parent


def _ancestors() -> list[int]:
    """Return the processes above this one: there may be others, such as sudo, below the hub."""
    found: list[int] = []
    pid = os.getppid()
    while pid > 0:
        found.append(pid)
        try:
            status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:
            break
        pid = int(status.rpartition(")")[2].split()[1])
    return found


def watch(parent: Parent, on_gone: Callable[[], None]) -> None:
    """Call ``on_gone`` once, from a thread, when the parent is gone."""

    def look() -> None:
        pause = threading.Event()
        while not parent.gone:
            pause.wait(PARENT_CHECK_SECONDS)
        log.warning("the process that started this one is gone; ending")
        on_gone()

    threading.Thread(target=look, name="parent", daemon=True).start()


class FileLock:
    """A lock on a file; the kernel gives it up when its process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        """Name the file; it is made when the lock is taken."""
        self._path = path
        self._file: IO[bytes] | None = None

    def take(self) -> bool:
        """Take the lock if no other process has it.

        Raises:
            OSError: the file cannot be opened or made, or its file system has no locks.
        """
        if self._file is not None:
            return True
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except BaseException:
            os.close(descriptor)
            raise
        self._file = os.fdopen(descriptor, "rb")
        return True

    def take_when_free(self, stopped: threading.Event) -> bool:
        """Wait for the lock; False when ``stopped`` was set before it was free.

        Raises:
            OSError: as `take`.
        """
        told = False
        while not stopped.is_set():
            if self.take():
                return True
            if not told:
                log.warning("another one holds %s; waiting until it ends", self._path)
                told = True
            stopped.wait(LOCK_RETRY_SECONDS)
        return False

    def close(self) -> None:
        """Give the lock up."""
        if self._file is not None:
            self._file.close()
            self._file = None
