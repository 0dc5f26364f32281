"""What can go wrong between a client and an HTTP API, one fault after another or for a while."""

import contextlib
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


class Stream(Protocol):
    """What happens to the lines of one answer; times are seconds of a monotonic clock."""

    @property
    def is_over(self) -> bool:
        """Whether the answer is to be cut here."""

    def take(self, line: bytes, now: float) -> None:
        """Take a line that has come."""

    def due(self, now: float, *, ended: bool = False) -> list[bytes]:
        """Return the lines to give on now: once the answer has ended, all that are left."""

    def wait_seconds(self, now: float) -> float | None:
        """Return after how many seconds more is due, None if not before another line comes."""


@dataclass
class Fault:
    """What happens to requests that fit; nothing set: they are only counted."""

    method: str  # or "*"
    path: str  # a regular expression, searched in the path with its query
    delay: float = 0  # seconds that a request is held before it goes on
    hang: bool = False  # hold it until `lift`; then it goes on
    reset: bool = False  # close at once, the request unread: the client's connection is reset
    close: bool = False  # read the request, and close; nothing of it goes on
    status: int | None = None  # answer this in the upstream's place
    body: Any = None  # with this: a text as a page, anything else as JSON
    headers: Mapping[str, str] = field(default_factory=dict)  # and these fields
    lose: bool = False  # let the upstream do it, and close without its answer
    keep: bool = False  # let the upstream do it, and hold its answer until `lift`
    cut: int | None = None  # give this many bytes of the answer's body, and close
    change: Callable[[Any], Any] | None = None  # an answer's JSON into another; status 200 only
    stream: Callable[[], Stream] | None = None  # what happens to the lines of each answer
    times: int | None = None  # for so many requests; None: until lifted

    came: threading.Event = field(default_factory=threading.Event)
    passed: threading.Event = field(default_factory=threading.Event)  # an answer has begun to come
    count: int = 0
    _lifted: threading.Event = field(default_factory=threading.Event)
    _clients: set[socket.socket] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def lift(self) -> None:
        """Let held requests go on, and fit no more; a stream that is open keeps its trouble."""
        self._lifted.set()

    def break_off(self) -> None:
        """Close the connections whose requests this fault has decided about and that still run."""
        with self._lock:
            for client in self._clients:
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)

    def fits(self, method: str, path: str) -> bool:
        """Whether this fault decides about a request; counts it if so."""
        with self._lock:
            spent = self.times is not None and self.count >= self.times
            if self._lifted.is_set() or spent or self.method not in ("*", method):
                return False
            if not re.search(self.path, path):
                return False
            self.count += 1
        return True

    def hold(self) -> None:
        """Wait as long as this fault holds a request, which has come wholly by now."""
        self.came.set()
        if self.hang or self.delay:
            self._lifted.wait(None if self.hang else self.delay)

    def wait_for_lift(self) -> None:
        """Wait until `lift`."""
        self._lifted.wait()

    @contextlib.contextmanager
    def deciding_about(self, client: socket.socket) -> Iterator[None]:
        """Know, for a block, the connection of a request."""
        with self._lock:
            self._clients.add(client)
        try:
            yield
        finally:
            with self._lock:
                self._clients.discard(client)

    def answer(self) -> tuple[str, bytes]:
        """Return the content type and the body with which `status` is answered."""
        if self.status == 204:
            return "", b""
        if isinstance(self.body, str):
            return "text/html", self.body.encode()
        plain = {"status": self.status, "message": f"fault {self.status}"}
        return "application/json", json.dumps(plain if self.body is None else self.body).encode()


def without_first(count: int) -> Callable[[list[Any]], list[Any]]:
    """Return a change that leaves out the first so many items of a list."""
    return lambda items: items[count:]


def without(left_out: Callable[[Any], bool]) -> Callable[[list[Any]], list[Any]]:
    """Return a change that leaves out the items of which this is true."""
    return lambda items: [item for item in items if not left_out(item)]
