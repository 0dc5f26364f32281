"""A small real HTTP/1.1 server for the proxy's own tests, on a loopback port or a unix socket."""

import json
import queue
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.doubles.http_wire import Head, chunk

ITEMS = [{"name": "ada"}, {"name": "ben"}, {"name": "cho"}]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "_Server"

    def address_string(self) -> str:
        return "client"

    def log_message(self, *_: Any) -> None:
        pass

    def _note(self, body: bytes) -> None:
        self.server.seen.append((self.command, self.path, body))

    def _json(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data if self.command != "HEAD" else b"")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_DELETE(self) -> None:
        self._note(b"")
        self.send_response(204)
        self.end_headers()

    def do_POST(self) -> None:
        head = Head("", tuple(self.headers.items()))
        body = self.rfile.read(int(head.get("content-length") or 0))
        self._note(body)
        if self.path.endswith("/talk"):
            self.close_connection = True
            self.send_response(101)
            self.send_header("Upgrade", head.get("upgrade"))
            self.send_header("Connection", head.get("connection"))
            self.end_headers()
            self.wfile.write(b"hello\n")
            while line := self.rfile.readline():
                self.wfile.write(line.upper())
            self.wfile.write(b"bye\n")
        else:
            self._json({"got": len(body)})

    def do_GET(self) -> None:
        self._note(b"")
        if self.path.endswith("/chunks"):
            self._chunks([b"one,", b"two," * 20_000, b"three"])
        elif self.path.endswith("/lines"):
            self._chunks(iter(self.server.lines.get, None))
        elif self.path.endswith("/to-the-end"):
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(b"all of it")
        else:
            self._json(ITEMS)

    def _chunks(self, pieces: Any) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in pieces:
            self.wfile.write(chunk(piece))
        self.wfile.write(b"0\r\nX-Sum: 1\r\n\r\n")


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    seen: list[tuple[str, str, bytes]]
    lines: "queue.Queue[bytes | None]"  # of the stream at /lines; None ends it

    def handle_error(self, *_: Any) -> None:
        """A connection that breaks off is what is tested here."""


class _UnixServer(socketserver.ThreadingUnixStreamServer, _Server):  # type: ignore[misc]
    """The same, on a path."""


@contextmanager
def tiny_server(path: Path | None = None) -> Iterator[tuple[str, _Server]]:
    """Run a server; gives its URL (with a prefix on TCP) and what it has seen."""
    server: Any = _Server(("127.0.0.1", 0), _Handler) if path is None else None
    if path is not None:
        server = _UnixServer(str(path), _Handler)
    server.seen, server.lines = [], queue.Queue()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        port = server.server_address[1] if path is None else 0
        yield (f"http://127.0.0.1:{port}/hub/api" if path is None else f"unix://{path}"), server
    finally:
        server.lines.put(None)
        server.shutdown()
        server.server_close()
        thread.join()
