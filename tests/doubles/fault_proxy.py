"""A proxy before an HTTP API that can be slow, silent, wrong, away, or cut off in the middle.

It stands before the engine's API and before the hub's. Requests of one connection are served one
after the other, each over a connection of its own to the upstream, so that a fault of one never
reaches the next. Faults are looked up in order of their making; the first that fits a request
decides, and is spent after ``times`` requests.

A client that goes away before its answer has begun is not told to the upstream, which finishes what
it does; later it is.
"""

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.doubles.fault_answers import give, give_own
from tests.doubles.faults import Fault
from tests.doubles.http_wire import Body, Head, Wire, read_body
from tests.rig.processes import free_port

_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class FaultProxy:
    """Stands before ``upstream``; use as a context manager.

    ``upstream`` is ``unix://PATH``, ``tcp://HOST:PORT`` or ``http://HOST:PORT/PREFIX``. Clients
    come to a loopback port, or to the unix socket ``socket_path``.
    """

    def __init__(self, upstream: str, *, socket_path: Path | None = None) -> None:
        self._upstream = urlsplit(upstream)
        self._own: Any = ("127.0.0.1", free_port()) if socket_path is None else str(socket_path)
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self._clients: set[socket.socket] = set()
        self._upstreams: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._closing = False
        self.requests: list[tuple[str, str]] = []  # method and path of each, in their order

    @property
    def url(self) -> str:
        """What a client calls the upstream."""
        if isinstance(self._own, str):
            return f"unix://{self._own}"
        scheme = self._upstream.scheme.replace("unix", "tcp")
        return f"{scheme}://127.0.0.1:{self._own[1]}{self._prefix}"

    @property
    def _prefix(self) -> str:
        return "" if self._upstream.scheme == "unix" else self._upstream.path

    # --- faults ---------------------------------------------------------------------------

    def fault(self, method: str, path: str, **what: Any) -> Fault:
        """Add a fault for requests whose path fits; ``what`` are the fields of `Fault`."""
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
        """Lift all faults, and take connections again if they were refused."""
        with self._lock:
            faults, self._faults = self._faults, []
        for fault in faults:
            fault.lift()
        if not self._closing:
            self.listen()

    def refuse(self) -> None:
        """Be as an upstream that has ended: no connection is taken, and the open ones close.

        Requests that are on their way go on, unknown to their clients.
        """
        with self._lock:
            listener, self._listener = self._listener, None
            clients = list(self._clients)
        if listener is not None:
            # A thread that waits for a connection is not woken by a close alone.
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        _shut(clients)

    def listen(self) -> None:
        """Take connections, at the same address as before."""
        with self._lock:
            if self._listener is not None:
                return
            if isinstance(self._own, str):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._own)
                family = socket.AF_UNIX
            else:
                family = socket.AF_INET
            listener = self._listener = socket.create_server(self._own, family=family, backlog=128)
        self._start(self._accept, listener)

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Refuse connections for the time of a block."""
        self.refuse()
        try:
            yield
        finally:
            self.listen()

    # --- life -----------------------------------------------------------------------------

    def __enter__(self) -> "FaultProxy":
        self.listen()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self.refuse()
        self.lift()
        with self._lock:
            upstreams, threads = list(self._upstreams), list(self._threads)
        _shut(upstreams)
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive(), "a connection of the proxy does not end"
        if isinstance(self._own, str):
            Path(self._own).unlink(missing_ok=True)

    def _start(self, work: Any, *args: Any) -> threading.Thread:
        thread = threading.Thread(target=work, args=args, daemon=True)
        with self._lock:
            self._threads = [*(each for each in self._threads if each.is_alive()), thread]
            thread.start()
        return thread

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                self._start(self._serve, client, listener)

    @contextmanager
    def _registered(self, connection: socket.socket, among: set[socket.socket]) -> Iterator[None]:
        with contextlib.closing(connection):
            with self._lock:
                if self._closing:
                    raise ConnectionAbortedError("the proxy ends")
                among.add(connection)
            try:
                yield
            finally:
                with self._lock:
                    among.discard(connection)

    # --- one connection -------------------------------------------------------------------

    def _serve(self, client: socket.socket, listener: socket.socket) -> None:
        wire = Wire(client)
        with contextlib.suppress(OSError, EOFError), self._registered(client, self._clients):
            while self._listener is listener and self._serve_one(wire):
                pass

    def _serve_one(self, wire: Wire) -> bool:
        """Serve a request; return whether the connection is kept for the next one."""
        head = wire.read_head()
        if head is None:
            return False
        _, path, version = head.first.split(" ", 2)
        fault = self._decide(head.method, path)
        stays = version == "HTTP/1.1" and "close" not in head.get("connection").lower()
        with fault.deciding_about(wire.connection):
            body = b"" if fault.reset else _read_request_body(wire, head)
            fault.hold()
            if fault.reset:
                wire.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
            if fault.reset or fault.close or self._closing:
                return False
            if fault.status is not None:
                give_own(wire.connection, head, fault)
                return stays
            return self._pass_on(wire, head, body, fault) and stays

    def _decide(self, method: str, path: str) -> Fault:
        with self._lock:
            self.requests.append((method, path))
            fitting = (each for each in self._faults if each.fits(method, path))
            return next(fitting, Fault(method, path))

    def _pass_on(self, wire: Wire, head: Head, body: bytes, fault: Fault) -> bool:
        upstream = self._connect()
        with self._registered(upstream, self._upstreams):
            there = Wire(upstream)
            upstream.sendall(bytes(_onward(head, body, fault)) + body)
            answer = _final_head(there)
            fault.passed.set()
            if fault.keep:
                fault.wait_for_lift()
            coming = Body.of_answer(answer, head.method)
            if fault.lose:
                read_body(there, coming)
                return False
            if answer.status == 101 or (coming.to_the_end and head.get("upgrade")):
                wire.connection.sendall(bytes(answer))
                return self._tunnel(wire, there)
            return give(wire.connection, there, answer, coming, fault)

    def _connect(self) -> socket.socket:
        if self._upstream.scheme == "unix":
            upstream = socket.socket(socket.AF_UNIX)
            try:
                upstream.connect(self._upstream.path)
            except OSError:
                upstream.close()
                raise
            return upstream
        assert self._upstream.hostname is not None
        return socket.create_connection((self._upstream.hostname, self._upstream.port or 80))

    def _tunnel(self, wire: Wire, there: Wire) -> bool:
        """Carry bytes both ways, untouched, until the upstream's end; the connection ends too."""
        thread = self._start(_carry, wire, there.connection)
        _carry(there, wire.connection)
        _shut([wire.connection, there.connection])
        thread.join()
        return False


def _shut(connections: list[socket.socket]) -> None:
    """End connections that other threads may be waiting for."""
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def _carry(source: Wire, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.read():
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def _read_request_body(wire: Wire, head: Head) -> bytes:
    if head.get("expect").lower() == "100-continue":
        wire.connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    return read_body(wire, Body.of_request(head))


def _onward(head: Head, body: bytes, fault: Fault) -> Head:
    """Return a request's head as it goes to the upstream."""
    head = head.without("expect")
    if head.get("transfer-encoding"):
        head = head.without("transfer-encoding").having("Content-Length", len(body))
    if fault.change or fault.stream:
        head = head.without("accept-encoding")
    return head if head.get("upgrade") else head.without("keep-alive").having("Connection", "close")


def _final_head(there: Wire) -> Head:
    while True:
        head = there.read_head()
        if head is None:
            raise EOFError("the upstream gave no answer")
        if head.status == 101 or head.status >= 200:
            return head
