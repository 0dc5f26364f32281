"""How an answer goes to a client: as it came, or as a fault will have it."""

import json
import socket
import time
from multiprocessing.connection import wait

from tests.doubles.faults import Fault, Stream
from tests.doubles.http_wire import Body, Head, Wire, chunk, read_body


def give_own(client: socket.socket, request: Head, fault: Fault) -> None:
    """Answer a request in the upstream's place."""
    kind, text = fault.answer()
    head = Head(f"HTTP/1.1 {fault.status} Fault", tuple(fault.headers.items()))
    if fault.status != 204:
        head = head.having("Content-Type", kind).having("Content-Length", len(text))
    client.sendall(bytes(head) + (b"" if request.method == "HEAD" else text))


def give(client: socket.socket, there: Wire, answer: Head, coming: Body, fault: Fault) -> bool:
    """Give an answer to the client; return whether its connection can be kept."""
    answer = answer.without("connection", "keep-alive")
    if fault.change is not None and answer.status == 200:
        told = json.dumps(fault.change(json.loads(read_body(there, coming)))).encode()
        answer = answer.without("transfer-encoding").having("Content-Length", len(told))
        client.sendall(bytes(answer) + told)
        return True
    if coming.to_the_end or fault.stream or fault.cut is not None:
        answer = answer.having("Connection", "close")
    if fault.stream is not None:
        client.sendall(bytes(answer.without("content-length")))
        return _give_lines(client, there, coming, fault.stream())
    client.sendall(bytes(answer))
    left = fault.cut
    while not coming.done and left != 0 and _comes(there, client):
        piece = coming.feed(there.read())[:left]
        left = None if left is None else left - len(piece)
        client.sendall(chunk(piece) if coming.chunked and piece else piece)
    if fault.cut is None and coming.chunked:
        client.sendall(chunk(b""))
    return fault.cut is None and not coming.to_the_end


def _give_lines(client: socket.socket, there: Wire, coming: Body, stream: Stream) -> bool:
    """Give an answer line by line, as ``stream`` will have it; its connection is not kept."""
    part = b""
    while not stream.is_over:
        now = time.monotonic()
        for line in stream.due(now, ended=coming.done):
            client.sendall(chunk(line) if coming.chunked else line)
        if coming.done:
            client.sendall(chunk(b"") if coming.chunked else b"")
            break
        if not stream.is_over and _comes(there, client, stream.wait_seconds(now)):
            *lines, part = (part + coming.feed(there.read())).split(b"\n")
            for line in [*lines, part] if coming.done and part else lines:
                stream.take(line + b"\n", time.monotonic())
    return False


def _comes(there: Wire, client: socket.socket, seconds: float | None = None) -> bool:
    """Wait until the upstream has more to say; return whether it has, before so many seconds.

    Raises:
        ConnectionError: the client has gone meanwhile.
    """
    watched = [there.connection, client]
    while not there.has_early():
        ready = wait(watched, seconds)
        if there.connection in ready:
            break
        if not ready:
            return False
        if not client.recv(1, socket.MSG_PEEK):
            raise ConnectionError("the client has gone")
        watched.remove(client)  # its next request, which is read later
    return True
