"""The life of our two processes: end with the hub that started them, and never run twice.

JupyterHub ends when a managed service is not up at its start, takes an orphan of an earlier hub
for its own, and after a SIGKILL leaves its services behind (hub facts H1). So each of ours ends by
itself when its parent is gone, and holds one lock.
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

PARENT_CHECK_SECONDS: Final = 2.0
LOCK_RETRY_SECONDS: Final = 2.0
_PR_SET_PDEATHSIG: Final = 1

log = logging.getLogger(__name__)


def end_with_parent(on_orphaned: Callable[[], None]) -> None:
    """Arrange for this process to end when the one that started it is gone.

    The kernel sends SIGTERM where it can (Linux); a look at the parent's id stands behind it,
    since the signal is lost if the parent died before it was asked for. Call it first of all.
    """
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    def watch() -> None:
        pause = threading.Event()
        while os.getppid() == parent:
            pause.wait(PARENT_CHECK_SECONDS)
        log.info("the process that started this one is gone; ending")
        on_orphaned()

    threading.Thread(target=watch, name="parent", daemon=True).start()


class OnlyOne:
    """A lock file that one process holds; it is free again when that process ends, however."""

    def __init__(self, file: Path) -> None:
        """Name the file; nothing is opened yet."""
        self._file = file
        self._handle: IO[str] | None = None

    def try_take(self) -> bool:
        """Take the lock if it is free."""
        if self._handle is not None:
            return True
        handle = self._file.open("a")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.close()
            return False
        self._handle = handle
        return True

    def take(self, stopped: threading.Event) -> bool:
        """Wait for the lock; False when ``stopped`` was set before it was free."""
        told = False
        while not stopped.is_set():
            if self.try_take():
                return True
            if not told:
                log.warning("another one holds %s; waiting until it ends", self._file)
                told = True
            stopped.wait(LOCK_RETRY_SECONDS)
        return False

    def release(self) -> None:
        """Give the lock back."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None
