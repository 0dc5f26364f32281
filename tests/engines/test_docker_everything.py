"""The list of all containers on a real engine, whoever made them."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import docker.types
import pytest

from gpuspawner.domain.leases import Lease
from gpuspawner.domain.reconciliation import Found
from gpuspawner.engines.docker import labels
from gpuspawner.engines.docker.client import DockerEngine
from gpuspawner.engines.docker.runtime import DockerRuntime
from gpuspawner.engines.look import EngineUnknownError, Finished, Made, Running
from tests.builders import T0, key
from tests.doubles.engine_faults import LIST
from tests.doubles.fault_proxy import FaultProxy
from tests.engines.test_docker_listing import LEASE, A, B

pytestmark = pytest.mark.engine

ONE = [docker.types.DeviceRequest(driver="nvidia", device_ids=[A], capabilities=[["gpu"]])]
ALL = [docker.types.DeviceRequest(driver="nvidia", count=-1, capabilities=[["gpu"]])]


@pytest.fixture
def run(docker_engine: DockerEngine, stub_image: str) -> Callable[..., str]:
    """Make a container, started unless told otherwise; returns its id."""

    def run(image: str = stub_image, *, start: bool = True, **settings: Any) -> str:
        host = {
            name: settings.pop(name) for name in ("device_requests", "privileged")
            if name in settings
        }  # fmt: skip
        config = docker_engine.client().create_host_config(**host)
        made: str = docker_engine.call("create_container", image, host_config=config, **settings)[
            "Id"
        ]
        if start:
            docker_engine.call("start", made)
        return made

    return run


def listed(runtime: DockerRuntime) -> dict[str, Found]:
    return {each.run_id: each for each in runtime.everything()}


def of(lease: Lease | None) -> dict[str, str]:
    return labels.of_new(lease.key if lease else key("ada"), lease)


def test_each_is_listed_with_what_it_was_given(
    docker_engine: DockerEngine, run: Callable[..., str]
) -> None:
    ours = run(labels=of(LEASE), device_requests=ONE, name="ours")
    cpu = run(labels=of(None))
    one, all_ = run(device_requests=ONE, name="theirs"), run(device_requests=ALL)
    monitor = run(device_requests=ALL, labels={labels.IGNORE: "true"})
    plain, waiting = run(privileged=True), run(device_requests=ALL, start=False)

    found = listed(DockerRuntime(docker_engine))

    assert {number: each.devices for number, each in found.items()} == {
        ours: (A, B), cpu: (), one: (A,), all_: None, monitor: (), plain: (), waiting: (),
    }  # fmt: skip
    assert (found[ours].key, found[ours].fence) == (LEASE.key, LEASE.fence)
    assert found[ours].grant is not None
    assert found[ours].grant.slices == LEASE.slices
    assert (found[ours].name, found[one].name) == ("ours", "theirs")
    assert {number for number, each in found.items() if not each.runs} == {waiting}
    assert abs(found[one].made_at - datetime.now(UTC)) < timedelta(seconds=30)


def test_what_a_container_has_is_asked_once(
    docker_engine: DockerEngine, run: Callable[..., str], proxy: FaultProxy,
    open_engine: Callable[..., DockerEngine],
) -> None:  # fmt: skip
    made = [run(device_requests=ONE) for _ in range(3)]
    runtime = DockerRuntime(open_engine(proxy.url))
    assert set(listed(runtime)) == set(made)
    asked = len(proxy.requests)
    docker_engine.remove(made[0])
    for _ in range(3):
        assert {each.devices for each in runtime.everything()} == {(A,)}
    assert len(proxy.requests) == asked + 3


def test_one_that_cannot_be_inspected_leaves_the_others_known(
    run: Callable[..., str], proxy: FaultProxy, open_engine: Callable[..., DockerEngine]
) -> None:
    """A container whose layer is broken makes the engine answer 500 about it for ever."""
    broken, cpu, whole = run(), run(labels=of(None)), run(device_requests=ONE)
    runtime = DockerRuntime(open_engine(proxy.url))
    with proxy.during("GET", f"/containers/({broken}|{cpu})/json", status=500):
        found = listed(runtime)
    assert (found[broken].devices, found[whole].devices) == (None, (A,))
    assert found[cpu].devices == ()  # ours, and made without one
    assert listed(runtime)[broken].devices == ()


def test_one_that_goes_while_it_is_asked_about(
    run: Callable[..., str], proxy: FaultProxy, open_engine: Callable[..., DockerEngine]
) -> None:
    made = run(device_requests=ONE)
    runtime = DockerRuntime(open_engine(proxy.url))
    with proxy.during("GET", f"/containers/{made}/json", status=404):
        assert listed(runtime)[made].devices == ()
    assert listed(runtime)[made].devices == (A,)


@pytest.mark.parametrize("fault", [{"status": 500}, {"close": True}, {"cut": 20}])
def test_without_the_list_nothing_is_known(
    run: Callable[..., str], proxy: FaultProxy, open_engine: Callable[..., DockerEngine],
    fault: dict[str, Any],
) -> None:  # fmt: skip
    run()
    runtime = DockerRuntime(open_engine(proxy.url))
    with proxy.during("GET", LIST, **fault), pytest.raises(EngineUnknownError):
        runtime.everything()
    assert len(runtime.everything()) == 1


def test_an_engine_that_falls_silent_while_it_is_asked_about_each(
    run: Callable[..., str], proxy: FaultProxy, open_engine: Callable[..., DockerEngine]
) -> None:
    made = run(device_requests=ONE)
    runtime = DockerRuntime(open_engine(proxy.url))
    silence = proxy.during("GET", f"/containers/{made}/json", close=True)
    with silence, pytest.raises(EngineUnknownError):
        runtime.everything()


# Images that were made of a server's container.


@pytest.fixture
def committed(
    docker_engine: DockerEngine, run: Callable[..., str]
) -> Callable[[Lease | None], str]:  # fmt: skip
    """Make an image of a server's container, as one does who installed something."""

    def commit(lease: Lease | None) -> str:
        made = run(labels=of(lease))
        image: str = docker_engine.call("commit", made)["Id"]
        docker_engine.remove(made)
        return image

    return commit


@pytest.mark.proves("R4")
def test_a_grant_that_only_the_image_carries_is_no_grant(
    docker_engine: DockerEngine, run: Callable[..., str], committed: Callable[[Lease | None], str]
) -> None:
    """Else every notebook of that image would be stopped as one whose grant is over."""
    image = committed(LEASE)
    cpu = run(image, labels=of(None))
    by_hand = run(image, device_requests=ALL)
    later = replace(LEASE, fence=(LEASE.fence or 0) + 1, slices=LEASE.slices[:1])
    gpu = run(image, labels=of(later))
    runtime = DockerRuntime(docker_engine)

    found = listed(runtime)

    assert (found[cpu].fence, found[cpu].grant, found[cpu].devices) == (None, None, ())
    assert (found[by_hand].fence, found[by_hand].devices) == (None, None)
    assert (found[gpu].fence, found[gpu].devices) == (later.fence, (A,))
    runtime.clear(LEASE)
    assert set(listed(runtime)) == {cpu, by_hand, gpu}
    assert isinstance(runtime.look(later), Running)
    runtime.clear(later)
    assert set(listed(runtime)) == {cpu, by_hand}
    docker_engine.remove(cpu)
    docker_engine.remove(by_hand)
    docker_engine.call("remove_image", image)


@pytest.mark.proves("R4")
@pytest.mark.parametrize("lease", [LEASE, None])
def test_what_one_runs_by_hand_of_an_image_of_a_server_is_nobodys(
    docker_engine: DockerEngine,
    run: Callable[..., str],
    committed: Callable[[Lease | None], str],
    lease: Lease | None,
) -> None:
    """Else a stop of that server would remove it."""
    image = committed(lease)
    by_hand, servers = run(image), run(image, labels=of(None))

    (found,) = docker_engine.find(labels.labels_of(key("ada"), None))

    assert found["Id"] == servers
    seen = listed(DockerRuntime(docker_engine))
    assert (seen[by_hand].key, seen[servers].key) == (None, key("ada"))
    for each in (by_hand, servers):
        docker_engine.remove(each)
    docker_engine.call("remove_image", image)


@pytest.mark.proves("R4", "P2")
def test_where_an_image_cannot_be_asked_for_its_labels_nothing_is_done_about_its_containers(
    docker_engine: DockerEngine,
    run: Callable[..., str],
    committed: Callable[[Lease | None], str],
    proxy: FaultProxy,
    open_engine: Callable[..., DockerEngine],
) -> None:
    image = committed(LEASE)
    by_hand, cpu = run(image, device_requests=ONE), run(labels=of(None))
    engine = open_engine(proxy.url)
    with proxy.during("GET", "/images/.*/json", status=500):
        seen = listed(DockerRuntime(engine))
        with pytest.raises(EngineUnknownError):
            engine.find(labels.labels_of(key("ada"), None))
    assert (seen[by_hand].key, seen[by_hand].fence, seen[by_hand].devices) == (None, None, (A,))
    assert seen[cpu].key is None
    again = listed(DockerRuntime(engine))
    assert (again[by_hand].key, again[cpu].key) == (None, key("ada"))
    for each in (by_hand, cpu):
        docker_engine.remove(each)
    docker_engine.call("remove_image", image)


@pytest.mark.proves("R3")
def test_an_engine_that_was_replaced_unnoticed_is_asked_who_it_is_before_its_no_counts(
    docker_engine: DockerEngine, run: Callable[..., str]
) -> None:
    gone = run()
    mine = docker_engine.identity()
    docker_engine.remove(gone)
    lease = replace(LEASE, run_id=gone, engine_id="another", granted_at=T0, fence=LEASE.fence)
    docker_engine._info = {"ID": "another"}  # what it said before it was replaced
    with pytest.raises(EngineUnknownError, match="was made by another"):
        DockerRuntime(docker_engine).look(lease)
    docker_engine._info = {"ID": "another"}
    assert DockerRuntime(docker_engine).identity() == mine


def test_one_run_by_its_id(docker_engine: DockerEngine, run: Callable[..., str]) -> None:
    runtime = DockerRuntime(docker_engine)
    made, other = run(), run(start=False)
    assert isinstance(runtime.look_at(made), Running)
    assert runtime.look_at(other) == Made(run_id=other)
    docker_engine.call("kill", made)
    docker_engine.call("wait", made)
    assert isinstance(runtime.look_at(made), Finished)
    for _ in range(2):
        runtime.clear_run(made)
    assert runtime.look_at(made) is None
    assert set(listed(runtime)) == {other}
    assert runtime.identity() == docker_engine.call("info")["ID"]
