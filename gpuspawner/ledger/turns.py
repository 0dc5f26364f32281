"""Turns: processes that write to one SQLite file wait in line instead of shoving.

SQLite's own waiting sleeps up to 100 ms between two looks, so a process with many writers shuts
another one out for seconds. Here a writer first takes the place of the next one, then the turn,
then gives the place up: whoever wrote last is behind whoever waits. It is about fairness only;
that no two write at once is SQLite's own promise and needs none of this.
"""

import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_LOOK_EVERY_SECONDS: Final = 0.0005


class Queue:
    """A lock that goes to who waited longest; Python's own goes to whoever is quickest."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._taken = False

    def acquire(self, seconds: float) -> bool:
        """Wait for the lock; False when the time is over."""
        with self._guard:
            if not self._taken:
                self._taken = True
                return True
            place = threading.Lock()
            place.acquire()
            self._waiting.append(place)
        if place.acquire(timeout=seconds):
            return True
        with self._guard:
            if place not in self._waiting:
                return True  # it was handed over at the last moment
            self._waiting.remove(place)
        return False

    def release(self) -> None:
        """Hand the lock to the next, or put it down."""
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False


class Turns:
    """The line before one file. Used by one thread at a time."""

    def __init__(self, file: Path) -> None:
        """Name the ledger's file; the line's two files lie beside it."""
        self._files = (file.with_name(file.name + "-next"), file.with_name(file.name + "-turn"))
        self._handles: list[int] = []

    @contextmanager
    def turn(self, seconds: float) -> Iterator[None]:
        """Wait for the turn, but no longer than this; then go on in any case."""
        handles = self._opened()
        if not handles:
            yield
            return
        deadline = time.monotonic() + seconds
        following, turn = handles
        try:
            if _take(following, deadline):
                _take(turn, deadline)
                fcntl.flock(following, fcntl.LOCK_UN)
            yield
        finally:
            for handle in handles:
                fcntl.flock(handle, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the files; they open again at the next turn."""
        while self._handles:
            os.close(self._handles.pop())

    def _opened(self) -> list[int]:
        """Return the handles; none where the files may not be made or opened."""
        if not self._handles:
            with suppress(OSError):
                for file in self._files:
                    self._handles.append(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
            if len(self._handles) < len(self._files):
                self.close()
        return self._handles


def _take(handle: int, deadline: float) -> bool:
    """Lock an open file; False when the time is over."""
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_EVERY_SECONDS)
        else:
            return True
