"""Our client when the way to the engine is bad: unknown is never taken for gone."""

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from gpuspawner.domain.leases import Source
from gpuspawner.engines.docker.client import DockerEngine
from gpuspawner.engines.docker.runtime import DockerRuntime
from gpuspawner.engines.lanes import Lanes
from gpuspawner.engines.look import EngineRefusedError, EngineUnknownError
from tests.doubles.fault_proxy import FaultProxy
from tests.engines.test_docker_engine import lease
from tests.rig.engine import OwnedEngine
from tests.rig.processes import free_port

pytestmark = pytest.mark.engine

INSPECT = r"/containers/[0-9a-f]+/json"
LIST = r"/containers/json"


@pytest.fixture
def docker_engine(proxy: FaultProxy, open_engine: Callable[..., DockerEngine]) -> DockerEngine:
    """Our client, through the proxy."""
    return open_engine(proxy.url)


@pytest.fixture
def made(docker_engine: DockerEngine, stub_image: str) -> str:
    """A container that runs."""
    container: str = docker_engine.call("create_container", stub_image)["Id"]
    docker_engine.call("start", container)
    return container


@pytest.mark.proves("P2", "R3")
@pytest.mark.parametrize("status", [500, 502, 503])
def test_trouble_of_the_engine_is_not_gone(
    docker_engine: DockerEngine, proxy: FaultProxy, made: str, status: int
) -> None:
    with proxy.during("GET", INSPECT, status=status), pytest.raises(EngineUnknownError) as error:
        docker_engine.inspect(made)
    assert error.value.answered
    assert f"fault {status}" in str(error.value)
    assert docker_engine.inspect(made) is not None


@pytest.mark.parametrize("status", [400, 403, 409])
def test_a_refusal_is_told_apart(
    docker_engine: DockerEngine, proxy: FaultProxy, made: str, status: int
) -> None:
    with proxy.during("GET", INSPECT, status=status), pytest.raises(EngineRefusedError) as error:
        docker_engine.inspect(made)
    assert error.value.status == status


def test_only_a_404_is_gone(docker_engine: DockerEngine, proxy: FaultProxy, made: str) -> None:
    with proxy.during("GET", INSPECT, status=404):
        assert docker_engine.inspect(made) is None


@pytest.mark.proves("R3")
@pytest.mark.parametrize("fault", [{"cut": 20}, {"cut": 0}, {"lose": True}])
def test_half_an_answer_is_none(
    docker_engine: DockerEngine, proxy: FaultProxy, made: str, fault: dict[str, object]
) -> None:
    with proxy.during("GET", INSPECT, **fault), pytest.raises(EngineUnknownError) as error:
        docker_engine.inspect(made)
    assert not error.value.answered
    with proxy.during("GET", LIST, **fault), pytest.raises(EngineUnknownError):
        docker_engine.find({})
    with proxy.during("GET", INSPECT, **fault), pytest.raises(EngineUnknownError):
        DockerRuntime(docker_engine).look(lease(made))
    assert docker_engine.inspect(made) is not None


def test_a_hanging_engine_costs_one_time_limit(
    proxy: FaultProxy, made: str, open_engine: Callable[..., DockerEngine]
) -> None:
    hurried = open_engine(proxy.url, timeout=1)
    assert hurried.inspect(made) is not None
    with proxy.during("GET", INSPECT, hang=True):
        began = time.monotonic()
        with pytest.raises(EngineUnknownError) as error:
            hurried.inspect(made)
        assert time.monotonic() - began < 5
    assert not error.value.answered
    assert hurried.inspect(made) is not None


def test_many_callers_of_a_hanging_engine_do_not_wait_for_each_other(
    proxy: FaultProxy, open_engine: Callable[..., DockerEngine]
) -> None:
    """Nobody has asked for the version yet, and eight threads want to."""
    hurried = open_engine(proxy.url, timeout=1)
    errors: list[str] = []

    def ask() -> None:
        try:
            hurried.inspect("x")
        except EngineUnknownError as error:
            errors.append(str(error))

    with proxy.during("GET", "/version", hang=True):
        began = time.monotonic()
        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        took = time.monotonic() - began
    assert len(errors) == 8
    assert took < 5  # not eight time limits one after the other
    assert hurried.inspect("x") is None


@pytest.mark.proves("R3")
def test_an_engine_that_is_not_there(open_engine: Callable[..., DockerEngine]) -> None:
    nowhere = open_engine(f"tcp://127.0.0.1:{free_port()}")
    for call in (
        lambda: nowhere.inspect("x"), lambda: nowhere.find({"a": "b"}), lambda: nowhere.image("x"),
        lambda: nowhere.stop("x"), lambda: nowhere.remove("x"),
        lambda: nowhere.pull("x", print), nowhere.client,
        lambda: nowhere.end_of_absent("x", datetime.now(UTC), None),
    ):  # fmt: skip
        with pytest.raises(EngineUnknownError) as error:
            call()
        assert not error.value.answered
    assert nowhere.last_lines("x") == ""


def test_an_engine_that_comes_back_is_found_again(
    docker_engine: DockerEngine, engine: OwnedEngine, made: str
) -> None:
    engine.kill()
    with pytest.raises(EngineUnknownError):
        docker_engine.inspect(made)
    engine.start()
    container = docker_engine.inspect(made)
    assert container is not None
    assert not container["State"]["Running"]


def test_a_removal_that_another_one_does_is_waited_for(
    docker_engine: DockerEngine, proxy: FaultProxy, made: str
) -> None:
    """The engine says 409; the container is there until the other removal is over."""
    gone = threading.Event()

    def remove() -> None:
        docker_engine.remove(made)
        gone.set()

    with proxy.during("DELETE", made, status=409, times=1):
        thread = threading.Thread(target=remove)
        thread.start()
        with proxy.during("POST", f"{made}/wait") as waiting:
            assert waiting.came.wait(20)
            assert not gone.is_set()
            assert docker_engine.inspect(made) is not None
            docker_engine.call("remove_container", made, force=True)
            assert gone.wait(20)
        thread.join()
    assert docker_engine.inspect(made) is None


def test_a_removal_that_fails_at_the_engine_is_not_gone(
    docker_engine: DockerEngine, proxy: FaultProxy, made: str
) -> None:
    busy = {"StatusCode": 0, "Error": {"Message": "device or resource busy"}}
    with (
        proxy.during("POST", f"{made}/wait", status=200, body=busy),
        proxy.during("DELETE", made, status=409),
        pytest.raises(EngineUnknownError, match="resource busy"),
    ):
        docker_engine.remove(made)


@pytest.mark.proves("R3", "R5")
def test_a_removal_whose_answer_is_lost_is_unknown(
    docker_engine: DockerEngine, proxy: FaultProxy, made: str
) -> None:
    with proxy.during("DELETE", made, lose=True), pytest.raises(EngineUnknownError):
        docker_engine.remove(made)
    assert docker_engine.inspect(made) is None
    docker_engine.remove(made)


@pytest.mark.parametrize("status", [403, 404, 500])
def test_where_the_event_log_is_refused_last_seen_stands_in(
    docker_engine: DockerEngine, proxy: FaultProxy, made: str, status: int
) -> None:
    """As a filter before the engine's socket does."""
    since, seen = datetime.now(UTC) - timedelta(minutes=1), datetime.now(UTC)
    with proxy.during("GET", "/events", status=status):
        evidence = docker_engine.end_of_absent(made, since, seen)
    assert (evidence.source, evidence.finished_at) == (Source.LAST_SEEN, seen)


@pytest.mark.parametrize("fault", [{"cut": 10}, {"lose": True}, {"hang": True}])
def test_where_the_event_log_does_not_answer_it_is_asked_again(
    docker_engine: DockerEngine,
    proxy: FaultProxy,
    open_engine: Callable[..., DockerEngine],
    made: str,
    fault: dict[str, object],
) -> None:
    """The call has a time limit: the agent's guard stands still while it waits."""
    hurried = open_engine(proxy.url, timeout=1)
    since = datetime.now(UTC) - timedelta(minutes=1)
    docker_engine.remove(made)
    with proxy.during("GET", "/events", **fault), pytest.raises(EngineUnknownError):
        hurried.end_of_absent(made, since, None)
    assert docker_engine.end_of_absent(made, since, None).source is Source.EVENTS


@pytest.mark.proves("R14")
async def test_one_slow_call_delays_no_other_servers_call(
    docker_engine: DockerEngine, proxy: FaultProxy, made: str
) -> None:
    """Three creates that hang leave the others their threads and connections (H8)."""
    lanes = Lanes(8)
    with proxy.during("POST", "/containers/create", hang=True) as held:
        slow = [
            asyncio.create_task(lanes.run(user, docker_engine.call, "create_container", "x:1"))
            for user in ("ada", "ben", "cho")
        ]
        assert await asyncio.to_thread(held.came.wait, 20)
        mine = asyncio.create_task(lanes.run("ada", docker_engine.inspect, made))
        began = time.monotonic()
        for n in range(10):
            assert await lanes.run(f"other{n}", docker_engine.inspect, made) is not None
        took = time.monotonic() - began
        assert not mine.done()  # behind the create of its own server
        assert held.count == 3
    assert took < 5
    results = await asyncio.gather(*slow, return_exceptions=True)
    assert [type(result).__name__ for result in results] == ["ImageNotFound"] * 3
    assert await mine is not None
    lanes.close()
