"""How the service lives beside a hub: it ends with it, waits for its port, and runs once.

Standard library only: this is imported before anything slow.
"""

import asyncio
import ctypes
import fcntl
import ipaddress
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import IO, Final

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG: Final = 1
_LONGEST_WAIT_SECONDS: Final = 30.0
_SAY_AGAIN_AFTER: Final = 10  # attempts


def end_with_parent() -> None:
    """Have the kernel end this process when the one that started it is gone (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Parent:
    """The process that started us. Gone when we belong to somebody else."""

    def __init__(self, pid: int, look: Callable[[], int] = os.getppid) -> None:
        """Remember who it is."""
        self._pid = pid
        self._look = look

    async def wait_gone(self, every_seconds: float = 1.0) -> None:
        """Return once it is gone; the kernel's signal may not come on every system."""
        while self._look() == self._pid:  # noqa: ASYNC110 - nobody tells us; we look
            await asyncio.sleep(every_seconds)


def backoff(first_seconds: float = 0.5) -> Iterator[float]:
    """Yield waiting times that double up to half a minute, for ever."""
    wait = first_seconds
    while True:
        yield wait
        wait = min(wait * 2, _LONGEST_WAIT_SECONDS)


async def until_done(
    what: str, attempt: Callable[[], Awaitable[str | None]], first_seconds: float = 0.5
) -> None:
    """Attempt until it works; ``attempt`` returns None, or in words what stands against it."""
    for number, wait in enumerate(backoff(first_seconds)):
        trouble = await attempt()
        if trouble is None:
            if number:
                log.warning("%s: done at attempt %d", what, number + 1)
            return
        if number % _SAY_AGAIN_AFTER == 0:
            log.warning("%s: %s; trying again until it works", what, trouble)
        await asyncio.sleep(wait)


def bind(address: str, port: int) -> list[socket.socket]:
    """Listen on an address, or on those of a name. Blocks while a name is resolved.

    Raises:
        OSError: it is taken or not there; or it is a wildcard by another spelling, such as ``0``.
    """
    found = dict.fromkeys(socket.getaddrinfo(address, port, type=socket.SOCK_STREAM))
    if any(ipaddress.ip_address(where[0]).is_unspecified for *_, where in found):
        raise OSError(f"{address} is a wildcard address, which is never listened on")
    bound: list[socket.socket] = []
    try:
        for family, kind, protocol, _, where in found:
            listener = socket.socket(family, kind, protocol)
            bound.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.setblocking(False)
            listener.bind(where)
            listener.listen(128)
    except BaseException:
        for listener in bound:
            listener.close()
        raise
    return bound


class FileLock:
    """A lock on a file; the kernel gives it up when its process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        """Name the file; it is made when the lock is taken."""
        self._path = path
        self._file: IO[bytes] | None = None

    def take(self) -> bool:
        """Take the lock if no other process has it."""
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

    def close(self) -> None:
        """Give the lock up."""
        if self._file is not None:
            self._file.close()
            self._file = None


def end_soon(seconds: float = 5.0) -> None:
    """Leave the process for certain: a thread that hangs in a call must not keep it alive."""
    timer = threading.Timer(seconds, os._exit, (0,))
    timer.daemon = True
    timer.start()
