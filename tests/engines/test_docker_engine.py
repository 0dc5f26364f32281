"""Our client on a real engine."""

import contextlib
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpuspawner.domain.leases import Lease, Source, State
from gpuspawner.engines.docker import labels
from gpuspawner.engines.docker.client import DockerEngine
from gpuspawner.engines.docker.reading import parse_time, read_state
from gpuspawner.engines.docker.runtime import DockerRuntime
from gpuspawner.engines.look import (
    Absent,
    EngineRefusedError,
    EngineUnknownError,
    Finished,
    Made,
    Running,
)
from tests.builders import WHOLE, hold_of, key
from tests.rig.engine import OwnedEngine
from tests.rig.images import Images
from tests.rig.processes import wait_for

pytestmark = pytest.mark.engine


@pytest.fixture
def make(docker_engine: DockerEngine, stub_image: str) -> Callable[..., str]:
    """Make a container, started unless told otherwise; returns its id."""

    def make(image: str = stub_image, *, start: bool = True, **settings: Any) -> str:
        made: str = docker_engine.call("create_container", image, **settings)["Id"]
        if start:
            docker_engine.call("start", made)
        return made

    return make


def lease(run_id: str | None, **values: Any) -> Lease:
    asked = datetime.now(UTC) - timedelta(minutes=1)
    fresh = Lease(
        lease_id=7, key=key("ada"), state=State.RUNNING, profile=WHOLE, image=None,
        engine="docker", requested_at=asked, granted_at=asked, running_at=asked, fence=3,
        run_id=run_id, slices=(hold_of(7, "GPU-a").slice,),
    )  # fmt: skip
    return replace(fresh, **values)


def test_a_life_as_it_is_looked_at(docker_engine: DockerEngine, make: Callable[..., str]) -> None:
    made = make(start=False)

    def look() -> object:
        container = docker_engine.inspect(made)
        return container and read_state(container)

    assert look() == Made(run_id=made)
    docker_engine.call("start", made)
    running = look()
    assert isinstance(running, Running)
    assert abs(running.started_at - datetime.now(UTC)) < timedelta(seconds=20)
    docker_engine.call("pause", made)
    assert look() == running
    docker_engine.call("unpause", made)
    docker_engine.call("kill", made, signal=signal.SIGKILL)
    docker_engine.call("wait", made)
    ended = look()
    assert isinstance(ended, Finished)
    assert ended.evidence.source is Source.ENGINE
    assert ended.evidence.exit_code == 137
    assert ended.evidence.finished_at is not None
    assert running.started_at < ended.evidence.finished_at < datetime.now(UTC)
    docker_engine.remove(made)
    assert look() is None


def test_none_means_that_the_engine_is_sure(docker_engine: DockerEngine, stub_image: str) -> None:
    assert docker_engine.inspect("no-such-container") is None
    assert docker_engine.image("no-such-image:1") is None
    image = docker_engine.image(stub_image)
    assert image is not None
    assert stub_image in image["RepoTags"]


def test_a_stop_of_one_that_ignores_sigterm_kills_it_after_the_grace(
    docker_engine: DockerEngine, make: Callable[..., str], images: Images
) -> None:
    made = make(images.ignores_sigterm)
    wait_for("the stub to listen", lambda: docker_engine.last_lines(made))

    docker_engine.stop(made, grace_seconds=1)

    look = read_state(docker_engine.inspect(made))  # type: ignore[arg-type]
    assert isinstance(look, Finished)
    assert look.evidence.exit_code == 137
    docker_engine.stop(made)  # of one that has ended
    docker_engine.remove(made)
    docker_engine.stop(made)  # of one that is gone
    docker_engine.remove(made)


@pytest.mark.proves("R5")
def test_a_removal_by_several_at_once_is_over_for_each_of_them(
    docker_engine: DockerEngine, make: Callable[..., str]
) -> None:
    """The engine says 409 to the second one; it waits like the first (moby 37698)."""
    made = make()
    left: list[object] = []

    def remove() -> None:
        docker_engine.remove(made)
        left.append(docker_engine.inspect(made))

    threads = [threading.Thread(target=remove) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert left == [None] * 6


def test_the_last_lines(
    docker_engine: DockerEngine, make: Callable[..., str], images: Images
) -> None:
    made = make(images.exits_at_once)
    assert docker_engine.call("wait", made)["StatusCode"] == 3
    assert docker_engine.last_lines(made) == "no kernel to be found"
    many = make(command=["sh", "-c", "seq 1000; printf '\\377 end'"])
    docker_engine.call("wait", many)
    assert docker_engine.last_lines(many, 3).splitlines() == ["999", "1000", "� end"]
    long = make(command=["sh", "-c", "head -c 9000 /dev/zero | tr '\\0' x; echo END"])
    docker_engine.call("wait", long)
    assert len(docker_engine.last_lines(long)) == 4000
    assert docker_engine.last_lines(long).endswith("xEND")
    assert docker_engine.last_lines("no-such-container") == ""
    assert docker_engine.last_lines("") == ""


def test_a_default_server_is_not_a_named_one(
    docker_engine: DockerEngine, make: Callable[..., str]
) -> None:
    """Labels are matched whole: an empty server name matches no other."""
    keys = [key("ada"), key("ada", "x"), key("ada=b"), key("ada", "ä,\"'"), key("ben")]
    made = {each: make(start=False, labels=labels.labels_of(each, None)) for each in keys}
    make(start=False, labels={labels.HUB: "hub", labels.USER: "ada"})
    make(start=False)

    for each in keys:
        found = docker_engine.find(labels.labels_of(each, None))
        assert [item["Id"] for item in found] == [made[each]]


def test_what_is_found_comes_in_the_order_of_its_making(
    docker_engine: DockerEngine, make: Callable[..., str]
) -> None:
    made = [make(start=False, labels={"x": "y"}) for _ in range(5)]
    assert [item["Id"] for item in docker_engine.find({"x": "y"})] == made


def test_the_end_of_one_that_is_gone_stands_in_the_event_log_at_once(
    docker_engine: DockerEngine, make: Callable[..., str], engine: OwnedEngine
) -> None:
    """Also when it is asked for within the second of the death (H9)."""
    for _ in range(3):
        since = datetime.now(UTC)
        made = make()
        with contextlib.closing(engine.client()) as client:
            client.remove_container(made, force=True)
        asked = datetime.now(UTC)

        evidence = docker_engine.end_of_absent(made, since, None)

        assert datetime.now(UTC) - asked < timedelta(seconds=5)
        assert evidence.source is Source.EVENTS
        assert evidence.exit_code == 137
        assert evidence.finished_at is not None
        assert since < evidence.finished_at < asked


def test_when_the_engine_has_forgotten_last_seen_stands_in(
    docker_engine: DockerEngine, make: Callable[..., str], engine: OwnedEngine
) -> None:
    """An engine that was restarted has no events of before."""
    since = datetime.now(UTC)
    made = make()
    docker_engine.remove(made)
    seen = datetime.now(UTC)
    docker_engine.close()
    engine.restart()

    evidence = docker_engine.end_of_absent(made, since, seen)

    assert (evidence.source, evidence.finished_at) == (Source.LAST_SEEN, seen)


def test_an_image_that_nobody_has_cannot_be_pulled(docker_engine: DockerEngine) -> None:
    """The registry is on this machine and closed: no test goes to the network."""
    told: list[str] = []
    with pytest.raises((EngineRefusedError, EngineUnknownError)) as error:
        docker_engine.pull("127.0.0.1:1/no-such-image:1", told.append)
    assert "127.0.0.1:1" in str(error.value)
    if isinstance(error.value, EngineUnknownError):
        assert error.value.answered


def test_the_agents_view_by_id_and_by_label(
    docker_engine: DockerEngine, make: Callable[..., str]
) -> None:
    runtime = DockerRuntime(docker_engine)
    of_lease = labels.labels_of(key("ada"), lease(None))
    made = make(labels=of_lease)

    assert runtime.look(lease(made)) == runtime.look(lease(None))
    assert isinstance(runtime.look(lease(made)), Running)
    # A made one beside it does not hide it.
    other = make(start=False, labels=of_lease)
    assert runtime.look(lease(None)).run_id == made  # type: ignore[union-attr]
    # The one that was bound is gone: the other one counts.
    docker_engine.remove(made)
    assert runtime.look(lease(made)) == Made(run_id=other)

    before = datetime.now(UTC)
    runtime.clear(lease(made))
    runtime.clear(lease(made))

    assert docker_engine.find({labels.LEASE: "7"}) == []
    gone = runtime.look(lease(made))
    assert isinstance(gone, Absent)
    assert gone.evidence.source is Source.EVENTS
    assert gone.evidence.finished_at is not None
    assert gone.evidence.finished_at < before


def test_another_hubs_lease_with_the_same_number_is_not_touched(
    docker_engine: DockerEngine, make: Callable[..., str]
) -> None:
    theirs = make(labels={**labels.labels_of(key("ada"), lease(None)), labels.HUB: "other"})
    runtime = DockerRuntime(docker_engine)
    runtime.clear(lease(None))
    assert isinstance(runtime.look(lease(None)), Absent)
    assert docker_engine.inspect(theirs)["State"]["Running"]  # type: ignore[index]


@pytest.mark.parametrize(
    "values",
    [
        {"run_id": None},
        {"granted_at": None},
        {"running_at": None},  # made, never started, removed by hand
    ],
)
def test_what_was_never_started_never_ran(
    docker_engine: DockerEngine, make: Callable[..., str], values: dict[str, Any]
) -> None:
    made = make(start=False)
    docker_engine.remove(made)
    seen = datetime.now(UTC)
    look = DockerRuntime(docker_engine).look(replace(lease(made, last_seen_at=seen), **values))
    assert isinstance(look, Absent)
    assert look.evidence.source is Source.NEVER_RAN
    assert look.evidence.finished_at is None


def test_the_engines_time_of_a_start_is_kept_to_the_microsecond(
    docker_engine: DockerEngine, make: Callable[..., str]
) -> None:
    container = docker_engine.inspect(make())
    assert container is not None
    text = container["State"]["StartedAt"]
    assert parse_time(text).isoformat()[:26] == text[:26]
