"""The fault proxy does to requests what it is told, and nothing to others."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.fault_proxy import FaultProxy
from tests.doubles.faults import without, without_first
from tests.doubles.http_wire import Head
from tests.doubles.tiny_server import ITEMS, tiny_server
from tests.rig.processes import wait_for

BROKEN = (http.client.HTTPException, OSError)


class Way:
    """A proxy before a server, and a client that keeps its connection."""

    def __init__(self, proxy: FaultProxy, server: Any) -> None:
        self.proxy, self.server = proxy, server
        self.prefix = "" if proxy.url.startswith("unix") else "/hub/api"
        self.client = self.connect()

    def connect(self) -> http.client.HTTPConnection:
        client = http.client.HTTPConnection("127.0.0.1", 1)
        client.sock = self.socket()
        return client

    def socket(self) -> socket.socket:
        address = self.proxy.url.split("://")[1]
        family = socket.AF_UNIX if self.prefix == "" else socket.AF_INET
        connection = socket.socket(family)
        connection.settimeout(20)
        where = address.split("/")[0].split(":")
        try:
            connection.connect(address if self.prefix == "" else (where[0], int(where[1])))
        except OSError:
            connection.close()
            raise
        return connection

    def ask(self, path: str, method: str = "GET", **more: Any) -> tuple[int, bytes]:
        self.client.request(method, self.prefix + path, **more)
        answer = self.client.getresponse()
        return answer.status, answer.read()

    def renew(self) -> None:
        self.client.close()
        self.client = self.connect()

    def seen(self) -> list[tuple[str, str]]:
        return [(method, path) for method, path, _ in self.server.seen]


@pytest.fixture(params=["http", "unix"])
def way(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Way]:
    """From TCP to TCP with a prefix, and from a unix socket to another."""
    unix = request.param == "unix"
    with (
        tiny_server(tmp_path / "server.sock" if unix else None) as (url, server),
        FaultProxy(url, socket_path=tmp_path / "proxy.sock" if unix else None) as proxy,
    ):
        way = Way(proxy, server)
        yield way
        way.client.close()


def test_its_address_keeps_the_upstreams_prefix(tmp_path: Path) -> None:
    assert FaultProxy("http://127.0.0.1:1/hub/api").url.endswith("/hub/api")
    assert FaultProxy("http://127.0.0.1:1/hub/api").url.startswith("http://127.0.0.1:")
    assert FaultProxy("unix:///run/d.sock").url.startswith("tcp://127.0.0.1:")
    own = tmp_path / "own.sock"
    assert FaultProxy("unix:///run/d.sock", socket_path=own).url == f"unix://{own}"


def test_without_faults_everything_passes_on_one_connection(way: Way) -> None:
    local = way.client.sock
    assert way.ask("/users?state=ready") == (200, json.dumps(ITEMS).encode())
    assert way.ask("/users", "HEAD") == (200, b"")
    assert way.ask("/chunks") == (200, b"one," + b"two," * 20_000 + b"three")
    assert way.ask("/users/ada/server", "DELETE") == (204, b"")
    assert way.ask("/users", "POST", body=b"x" * 200_000) == (200, b'{"got": 200000}')
    pieces = iter([b"ab", b"c" * 70_000])
    assert way.ask("/users", "POST", body=pieces, encode_chunked=True)[1] == b'{"got": 70002}'
    waiting = {"Expect": "100-continue"}
    assert way.ask("/users", "POST", body=b"late", headers=waiting)[1] == b'{"got": 4}'
    assert way.client.sock is local
    assert way.ask("/to-the-end") == (200, b"all of it")
    assert way.client.sock is None  # where nothing but the end tells the end
    assert way.seen() == way.proxy.requests
    assert way.seen()[0] == ("GET", f"{way.prefix}/users?state=ready")


def test_a_hijacked_connection_is_carried_both_ways(way: Way) -> None:
    with way.socket() as raw:
        head = Head(f"POST {way.prefix}/talk HTTP/1.1").having("Upgrade", "tcp")
        # The first words come together with the head.
        raw.sendall(bytes(head.having("Connection", "Upgrade")) + b"first\n")
        with raw.makefile("rb") as answer:
            assert b" 101 " in answer.readline()
            while answer.readline() != b"\r\n":
                pass
            assert answer.readline() == b"hello\n"
            assert answer.readline() == b"FIRST\n"
            raw.sendall(b"second\n")
            assert answer.readline() == b"SECOND\n"
            raw.shutdown(socket.SHUT_WR)
            assert answer.read() == b"bye\n"


@pytest.mark.parametrize("status", [400, 404, 409, 429, 500, 503])
def test_a_status_in_the_upstreams_place(way: Way, status: int) -> None:
    more = {"body": {"message": "no"}, "headers": {"Retry-After": "7"}}
    with way.proxy.during("GET", "/users$", status=status, **more) as fault:
        way.client.request("GET", way.prefix + "/users")
        answer = way.client.getresponse()
        assert (answer.status, answer.headers["Retry-After"]) == (status, "7")
        assert json.load(answer) == {"message": "no"}
        assert way.ask("/chunks")[0] == 200
    assert way.ask("/users")[0] == 200
    assert (fault.count, fault.came.is_set(), fault.passed.is_set()) == (1, True, False)
    assert [path for _, path in way.seen()] == [way.prefix + "/chunks", way.prefix + "/users"]


def test_other_bodies_than_json(way: Way) -> None:
    with way.proxy.during("*", "", status=502, body="<h1>Bad gateway</h1>"):
        assert way.ask("/users") == (502, b"<h1>Bad gateway</h1>")
        assert way.ask("/users", "HEAD") == (502, b"")
    with way.proxy.during("*", "", status=200, body=[]):
        assert way.ask("/users") == (200, b"[]")
    with way.proxy.during("*", "", status=204):
        assert way.ask("/users") == (204, b"")
    with way.proxy.during("*", "", status=500):
        assert json.loads(way.ask("/users")[1]) == {"status": 500, "message": "fault 500"}


def test_the_first_that_fits_decides_until_it_is_spent(way: Way) -> None:
    first = way.proxy.fault("GET", "/users", status=500, times=2)
    second = way.proxy.fault("GET", "/users", status=503)
    assert [way.ask("/users")[0] for _ in range(4)] == [500, 500, 503, 503]
    way.proxy.lift()
    assert way.ask("/users")[0] == 200
    assert (first.count, second.count) == (2, 2)


def test_a_delay_and_a_hang(way: Way) -> None:
    way.proxy.fault("GET", "/users", delay=0.3, times=1)
    began = time.monotonic()
    assert way.ask("/users")[0] == 200
    assert time.monotonic() - began >= 0.3
    held = way.proxy.fault("GET", "/users", hang=True)
    answers: list[int] = []
    asker = threading.Thread(target=lambda: answers.append(way.ask("/users")[0]))
    asker.start()
    assert held.came.wait(20)
    assert len(way.seen()) == 1
    held.lift()
    asker.join(20)
    assert answers == [200]
    assert held.passed.is_set()


def test_a_request_that_nobody_waits_for_is_still_done(way: Way) -> None:
    held = way.proxy.fault("DELETE", "/users", hang=True)
    way.client.request("DELETE", way.prefix + "/users/ada")
    assert held.came.wait(20)
    way.client.close()
    held.lift()
    assert held.passed.wait(20)
    assert way.seen() == [("DELETE", f"{way.prefix}/users/ada")]


def test_an_answer_lost_and_an_answer_held(way: Way) -> None:
    with way.proxy.during("DELETE", "/users", lose=True) as lost, pytest.raises(BROKEN):
        way.ask("/users/ada", "DELETE")
    assert lost.passed.wait(20)
    assert way.seen() == [("DELETE", f"{way.prefix}/users/ada")]
    way.renew()
    held = way.proxy.fault("GET", "/users", keep=True)
    way.client.request("GET", way.prefix + "/users")
    assert held.passed.wait(20)
    assert way.seen()[-1][0] == "GET"
    way.client.sock.settimeout(0.05)
    with pytest.raises(TimeoutError):
        way.client.sock.recv(1, socket.MSG_PEEK)
    way.client.sock.settimeout(20)
    held.lift()
    assert way.client.getresponse().read() == json.dumps(ITEMS).encode()


@pytest.mark.parametrize(("fault", "error"), [
    ({"reset": True}, ConnectionResetError),
    ({"close": True}, http.client.RemoteDisconnected),
])  # fmt: skip
def test_closed_at_once(way: Way, fault: dict[str, Any], error: type[Exception]) -> None:
    if way.prefix == "" and fault == {"reset": True}:
        error = ConnectionError  # a unix socket is reset only where something is unread
    with way.proxy.during("POST", "/users", **fault), pytest.raises(error):
        way.ask("/users", "POST", body=b"x")
    assert way.seen() == []
    way.renew()
    assert way.ask("/users")[0] == 200


@pytest.mark.parametrize("path", ["/users", "/chunks", "/to-the-end"])
@pytest.mark.parametrize("cut", [0, 1, 9])
def test_a_body_cut(way: Way, path: str, cut: int) -> None:
    with way.proxy.during("GET", path, cut=cut):
        way.client.request("GET", way.prefix + path)
        answer = way.client.getresponse()
        if path == "/to-the-end":
            assert answer.read() == b"all of it"[:cut]
        else:
            with pytest.raises(http.client.IncompleteRead) as error:
                answer.read()
            assert len(error.value.partial) == cut
    way.renew()
    assert way.ask(path)[0] == 200


@pytest.mark.parametrize(("change", "names"), [
    (without_first(2), ["cho"]),
    (without(lambda item: item["name"] == "ben"), ["ada", "cho"]),
    (lambda _: [], []),
])  # fmt: skip
def test_a_short_list(way: Way, change: Callable[[Any], Any], names: list[str]) -> None:
    with way.proxy.during("GET", "/users", change=change):
        status, body = way.ask("/users")
        assert (status, [item["name"] for item in json.loads(body)]) == (200, names)
        assert way.ask("/users", "POST", body=b"x")[1] == b'{"got": 1}'
    assert json.loads(way.ask("/users")[1]) == ITEMS


def test_refused_connections(way: Way) -> None:
    assert way.ask("/users")[0] == 200
    before = way.proxy.url
    with way.proxy.refusing():
        with pytest.raises(BROKEN):
            way.ask("/users")
        with pytest.raises(ConnectionRefusedError):
            way.renew()
        way.proxy.refuse()
    assert way.proxy.url == before
    way.renew()
    assert way.ask("/users")[0] == 200
    way.proxy.refuse()
    way.proxy.lift()
    way.renew()
    assert way.ask("/users")[0] == 200


def test_a_client_that_leaves_a_stream_is_not_served_on(way: Way) -> None:
    streaming = way.proxy.fault("GET", "/lines")
    way.server.lines.put(b"first\n")
    way.client.request("GET", way.prefix + "/lines")
    assert way.client.getresponse().read(6) == b"first\n"
    way.renew()
    wait_for("the proxy to let go of the stream", lambda: not streaming._clients)
    assert way.ask("/users")[0] == 200


def test_a_stream_broken_off_at_a_call(way: Way) -> None:
    streaming = way.proxy.fault("GET", "/lines")
    way.server.lines.put(b"first\n")
    way.client.request("GET", way.prefix + "/lines")
    answer = way.client.getresponse()
    assert answer.read(6) == b"first\n"
    streaming.break_off()
    with pytest.raises(BROKEN):
        answer.read()


def test_an_upstream_that_is_not_there(tmp_path: Path) -> None:
    for url in ("http://127.0.0.1:1/hub/api", f"unix://{tmp_path}/none.sock"):
        with FaultProxy(url) as proxy:
            client = http.client.HTTPConnection(proxy.url.split("://")[1].split("/")[0])
            client.request("GET", "/hub/api/users")
            with pytest.raises(BROKEN):
                client.getresponse()
            client.close()


def test_its_end_ends_everything_that_is_held(tmp_path: Path) -> None:
    with tiny_server() as (url, server):
        with FaultProxy(url) as proxy:
            way = Way(proxy, server)
            held = proxy.fault("GET", "/users", hang=True)
            way.client.request("GET", "/hub/api/users")
            assert held.came.wait(20)
        with pytest.raises(BROKEN):
            way.client.getresponse()
        way.client.close()
        assert way.seen() == []
