"""The fault proxy before a real engine: lists that get shorter, creates, events in disorder."""

import json
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import docker
import docker.errors
import pytest
import requests

from tests.doubles.engine_faults import CREATE, EVENTS, LIST, EventTrouble, without_container
from tests.doubles.fault_proxy import FaultProxy
from tests.doubles.faults import without_first
from tests.rig.engine import OwnedEngine
from tests.rig.processes import wait_for

Made = Callable[[str], str]


def names(client: docker.APIClient) -> set[str]:
    return {each["Names"][0] for each in client.containers(all=True)}


def line(number: int) -> bytes:
    return b'{"n": %d}\n' % number


def numbers(lines: list[bytes]) -> list[int]:
    return [json.loads(each)["n"] for each in lines]


def through(trouble: EventTrouble, count: int) -> list[int]:
    """Return what is told of so many events that come at once and end."""
    stream = trouble()
    told: list[bytes] = []
    for n in range(count):
        stream.take(line(n), 0.0)
        told += stream.due(0.0)
    return numbers(told + stream.due(0.0, ended=True))


def test_what_is_left_to_chance_depends_on_the_seed_alone() -> None:
    def once(seed: int) -> list[int]:
        return through(EventTrouble(seed=seed, drop=0.2, twice=0.3, window=5), 40)

    assert once(1) == once(1)
    assert once(1) != once(2)
    told = once(1)
    assert set(told) < set(range(40))
    assert len(told) > len(set(told))
    assert told != sorted(told)


def test_events_by_what_they_are() -> None:
    trouble = EventTrouble(drop=lambda event: event["n"] == 1, twice=lambda event: event["n"] > 2)
    assert through(trouble, 5) == [0, 2, 3, 3, 4, 4]
    assert trouble.came == [{"n": n} for n in range(5)]
    assert [event["n"] for event in trouble.given] == [0, 2, 3, 3, 4, 4]


def test_each_window_has_its_own_order() -> None:
    told = through(EventTrouble(seed=3, window=4), 10)
    assert told != sorted(told)
    assert [sorted(told[:4]), sorted(told[4:8]), sorted(told[8:])] == [
        [0, 1, 2, 3], [4, 5, 6, 7], [8, 9],
    ]  # fmt: skip


def test_a_window_that_does_not_fill_is_given_after_its_seconds() -> None:
    stream = EventTrouble(window=4, window_seconds=2)()
    assert stream.wait_seconds(9) is None
    stream.take(line(0), 10)
    stream.take(line(1), 11)
    assert (stream.due(11.5), stream.wait_seconds(11.5)) == ([], 0.5)
    assert sorted(numbers(stream.due(12))) == [0, 1]
    assert stream.wait_seconds(12) is None


def test_late_events_keep_their_order() -> None:
    stream = EventTrouble(delay=3)()
    stream.take(line(0), 10)
    stream.take(line(1), 11)
    assert (stream.due(12), stream.wait_seconds(12)) == ([], 1)
    assert numbers(stream.due(13)) == [0]
    assert stream.wait_seconds(13) == 1
    assert numbers(stream.due(14)) == [1]


def test_a_stream_is_over_after_so_many_events() -> None:
    trouble = EventTrouble(cut_after=2)
    stream = trouble()
    stream.take(line(0), 0)
    assert (len(stream.due(0)), stream.is_over) == (1, False)
    for n in (1, 2):
        stream.take(line(n), 0)
    assert (numbers(stream.due(0)), stream.is_over) == ([1], True)
    assert not trouble().is_over  # the next stream
    assert len(trouble.given) == 2


# --- a real engine ----------------------------------------------------------------------------


@pytest.fixture
def proxy(engine: OwnedEngine) -> Iterator[FaultProxy]:
    """The way to the engine."""
    with FaultProxy(engine.url) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[docker.APIClient]:
    """A client that goes through the proxy."""
    with closing(docker.APIClient(proxy.url, version="auto", timeout=20)) as client:
        yield client


@pytest.fixture
def make(client: docker.APIClient, stub_image: str) -> Made:
    """Make a container of this name; it does not run."""

    def create(name: str) -> str:
        made: str = client.create_container(stub_image, name=name)["Id"]
        return made

    return create


class Listener:
    """Reads an event stream in a thread, until it ends."""

    def __init__(self, client: docker.APIClient, proxy: FaultProxy) -> None:
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._client = client
        open_streams = sum(EVENTS in path for _, path in proxy.requests)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        wait_for(
            "the stream to open",
            lambda: sum(EVENTS in path for _, path in proxy.requests) > open_streams,
        )

    def _read(self) -> None:
        filters = {"type": "container", "event": ["create", "destroy"]}
        # docker-py ends without an error where a stream is cut.
        for event in self._client.events(decode=True, filters=filters):
            self.events.put(event)

    def take(self, count: int) -> list[tuple[str, str]]:
        got = [self.events.get(timeout=20) for _ in range(count)]
        return [(each["Action"], each["Actor"]["Attributes"]["name"]) for each in got]

    def end(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive()


@pytest.mark.engine
def test_a_list_that_got_shorter(client: docker.APIClient, proxy: FaultProxy, make: Made) -> None:
    for name in ("one", "two"):
        make(name)
    with proxy.during("GET", LIST, change=without_first(1), times=1):
        assert len(names(client)) == 1
        assert names(client) == {"/one", "/two"}
    with proxy.during("GET", LIST, change=without_container("one")):
        assert names(client) == {"/two"}
    with proxy.during("GET", LIST, status=200, body=[]):
        assert names(client) == set()
    assert names(client) == {"/one", "/two"}


@pytest.mark.engine
def test_a_create_whose_answer_is_lost_or_that_never_came(
    client: docker.APIClient, proxy: FaultProxy, make: Made
) -> None:
    with proxy.during("POST", CREATE, lose=True) as fault:
        with pytest.raises(requests.ConnectionError):
            make("lost")
        assert fault.passed.is_set()
    with (
        proxy.during("POST", CREATE, close=True),
        pytest.raises(requests.ConnectionError),
    ):
        make("closed")
    with (
        proxy.during("POST", CREATE, reset=True),
        pytest.raises(requests.ConnectionError),
    ):
        make("reset")
    with proxy.refusing(), pytest.raises(requests.ConnectionError):
        make("refused")
    with proxy.during("POST", CREATE, status=409), pytest.raises(docker.errors.APIError) as error:
        make("conflict")
    assert (error.value.status_code, error.value.explanation) == (409, "fault 409")
    assert names(client) == {"/lost"}


@pytest.mark.engine
def test_a_running_containers_streams_pass(
    client: docker.APIClient, make: Made, stub_image: str
) -> None:
    made = client.create_container(stub_image, ["cat"], stdin_open=True, entrypoint="")["Id"]
    attached = client.attach_socket(made, {"stdin": 1, "stdout": 1, "stream": 1})
    client.start(made)
    attached._sock.settimeout(20)
    attached._sock.sendall(b"said by ada\n")
    assert b"said by ada" in attached._sock.recv(100)
    execution = client.exec_create(made, ["echo", "done"])["Id"]
    assert client.exec_start(execution) == b"done\n"
    attached._response.close()
    attached.close()


@pytest.mark.engine
def test_events_in_disorder(client: docker.APIClient, proxy: FaultProxy, make: Made) -> None:
    trouble = EventTrouble(
        seed=1, window=2, window_seconds=60, twice=lambda event: event["Action"] == "create"
    )
    with proxy.during("GET", EVENTS, stream=trouble) as fault:
        listener = Listener(client, proxy)
        assert fault.passed.wait(20)
        made = [make("one"), make("two")]
        assert listener.take(4) == [("create", name) for name in ("one", "one", "two", "two")]
        for container in made:
            client.remove_container(container)
        assert sorted(listener.take(2)) == [("destroy", "one"), ("destroy", "two")]
        assert len(trouble.came) == 4
        fault.break_off()
        listener.end()


@pytest.mark.engine
def test_a_stream_cut_and_events_lost(
    client: docker.APIClient, proxy: FaultProxy, make: Made
) -> None:
    cut = EventTrouble(cut_after=1)
    first = proxy.fault("GET", EVENTS, stream=cut, times=1)
    listener = Listener(client, proxy)
    assert first.passed.wait(20)
    make("one")
    assert listener.take(1) == [("create", "one")]
    listener.end()

    lost = EventTrouble(drop=lambda event: event["Actor"]["Attributes"]["name"] == "two")
    second = proxy.fault("GET", EVENTS, stream=lost, times=1)
    listener = Listener(client, proxy)
    assert second.passed.wait(20)
    for name in ("two", "three"):
        make(name)
    assert listener.take(1) == [("create", "three")]
    second.break_off()
    listener.end()
