"""A proxy before an engine that can be slow, silent, wrong, or cut off in the middle.

Each request gets a connection of its own to the engine. Faults are looked up in order of their
making; the first that fits a request decides, and is spent after ``times`` requests.
"""

import contextlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Fault:
    """What happens to requests that fit; nothing set: they are only counted."""

    method: str
    path: str  # a regular expression, searched in the path with its query
    delay: float = 0  # seconds that a request is held before it goes to the engine
    hang: bool = False  # hold it until `lift`; then it goes to the engine
    status: int | None = None  # answer this in the engine's place
    body: Any = None  # with this JSON
    lose: bool = False  # let the engine do it, and close without its answer
    keep: bool = False  # let the engine do it, and hold its answer until `lift`
    cut: int | None = None  # give this many bytes of the answer's body, and close
    times: int | None = None  # for so many requests; None: until lifted

    came: threading.Event = field(default_factory=threading.Event)
    passed: threading.Event = field(default_factory=threading.Event)  # the engine has answered
    count: int = 0
    _lifted: threading.Event = field(default_factory=threading.Event)

    def lift(self) -> None:
        """Let held requests go on, and fit no more."""
        self._lifted.set()

    def fits(self, method: str, path: str) -> bool:
        """Whether this fault decides about a request; counts it if so."""
        spent = self.times is not None and self.count >= self.times
        if self._lifted.is_set() or spent or self.method not in ("*", method):
            return False
        if not re.search(self.path, path):
            return False
        self.count += 1
        self.came.set()
        return True

    def hold(self) -> None:
        """Wait as long as this fault holds a request."""
        if self.hang or self.delay:
            self.wait_for_lift(None if self.hang else self.delay)

    def wait_for_lift(self, seconds: float | None = None) -> None:
        """Wait until `lift`, or so long."""
        self._lifted.wait(seconds)


class DockerProxy:
    """Stands on a loopback port before an engine's unix socket; use as a context manager."""

    def __init__(self, engine_url: str) -> None:
        self._engine = engine_url.removeprefix("unix://")
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._closing = False
        self.requests: list[tuple[str, str]] = []

    @property
    def url(self) -> str:
        """What a client calls the engine."""
        return f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"

    def fault(self, method: str, path: str, **what: Any) -> Fault:
        """Add a fault for requests whose path fits."""
        fault = Fault(method, path, **what)
        with self._lock:
            self._faults.append(fault)
        return fault

    @contextmanager
    def during(self, method: str, path: str, **what: Any) -> Iterator[Fault]:
        """Add a fault for the time of a block."""
        fault = self.fault(method, path, **what)
        try:
            yield fault
        finally:
            fault.lift()

    def lift(self) -> None:
        """Lift all faults."""
        with self._lock:
            faults, self._faults = self._faults, []
        for fault in faults:
            fault.lift()

    def __enter__(self) -> "DockerProxy":
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.lift()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join(10)
            assert not thread.is_alive(), "a connection of the proxy does not end"

    def _start(self, work: Any, *args: Any) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with self._registered(client), contextlib.suppress(OSError):
            head, body = _read_request(client)
            if not head:
                return
            method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
            with self._lock:
                self.requests.append((method, path))
                fault = next((each for each in self._faults if each.fits(method, path)), None)
            if fault is not None:
                fault.hold()
            if self._closing:
                return
            if fault is not None and fault.status is not None:
                client.sendall(_answer(fault.status, fault.body))
            else:
                self._pass_on(client, head, body, fault)

    def _pass_on(
        self, client: socket.socket, head: bytes, body: bytes, fault: Fault | None
    ) -> None:
        engine = socket.socket(socket.AF_UNIX)
        with self._registered(engine):
            engine.connect(self._engine)
            engine.sendall(_without_keep_alive(head) + b"\r\n\r\n" + body)
            if fault is not None and fault.keep:
                engine.recv(1, socket.MSG_PEEK)
                fault.passed.set()
                fault.wait_for_lift()
            left = fault.cut if fault is not None else None
            while data := engine.recv(65536):
                if fault is not None and fault.lose:
                    continue
                if left is None:
                    # A client that has gone must not keep the engine from finishing.
                    with contextlib.suppress(OSError):
                        client.sendall(data)
                else:
                    at = data.find(b"\r\n\r\n")
                    client.sendall(data[: at + 4 + left])
                    break
            if fault is not None:
                fault.passed.set()

    @contextmanager
    def _registered(self, connection: socket.socket) -> Iterator[None]:
        with self._lock:
            self._open.add(connection)
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()


def _read_request(client: socket.socket) -> tuple[bytes, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        more = client.recv(65536)
        if not more:
            return b"", b""
        data += more
    head, body = data.split(b"\r\n\r\n", 1)
    found = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    length = int(found[1]) if found else 0
    while len(body) < length:
        more = client.recv(65536)
        if not more:
            return b"", b""
        body += more
    return head, body


def _without_keep_alive(head: bytes) -> bytes:
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
    return b"\r\n".join([*lines, b"Connection: close"])


def _answer(status: int, body: Any) -> bytes:
    text = b"" if status == 204 else json.dumps(body or {"message": f"fault {status}"}).encode()
    return (
        f"HTTP/1.1 {status} Fault\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n"
    ).encode() + text
