"""Books and engine against each other: late, lost, foreign, and another engine's containers."""

import contextlib
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import docker.types
import pytest
import requests

from gpuspawner.agent.guard import Guard
from gpuspawner.broker.broker import Broker
from gpuspawner.broker.reconcile import Reconciler
from gpuspawner.domain.devices import Mode
from gpuspawner.domain.leases import Claim, Lease, ServerKey, State
from gpuspawner.domain.placement import availability
from gpuspawner.domain.profiles import Profile
from gpuspawner.domain.reconciliation import Stray
from gpuspawner.engines.docker.client import DockerEngine
from gpuspawner.engines.docker.runtime import DockerRuntime
from gpuspawner.ledger.store import Ledger
from tests.doubles.fault_proxy import FaultProxy
from tests.e2e.lab import Lab
from tests.rig.engine import OwnedEngine
from tests.rig.processes import wait_for

pytestmark = pytest.mark.engine

HOST = socket.gethostname()
WHOLE_H100 = Profile(name="whole", title="Whole", mode=Mode.WHOLE, models=("H100",))
AT_ONCE = 'c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 0}\n'


class Watchers:
    """What an agent does about books and engine, step by step as the test wants it."""

    def __init__(self, lab: Lab, engine: DockerEngine) -> None:
        broker, runtimes = Broker(lab.ledger, "agent"), {"docker": DockerRuntime(engine)}
        self.reconciler = Reconciler(broker, runtimes, HOST, frozenset, _now)
        self.guard = Guard(broker, runtimes, HOST, _now)


def _now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
def watch() -> Iterator[Callable[..., Watchers]]:
    """Watch a lab's books and an engine by its address."""
    with contextlib.ExitStack() as stack:

        def make(lab: Lab, url: str) -> Watchers:
            engine = DockerEngine({"base_url": url, "timeout": 20})
            stack.callback(engine.close)
            return Watchers(lab, engine)

        yield make


def lab_with(make_lab: Callable[..., Lab], **settings: Any) -> Lab:
    lab = make_lab(**settings)
    for user in ("ada", "ben"):
        lab.hub.add_user(user)
    return lab


def h100(lab: Lab) -> str:
    return next(each.uuid for each in lab.inventory.devices if "H100" in each.model)


def ask(lab: Lab, user: str, profile: str = "whole") -> int:
    status: int = lab.hub.start_server(user, options={"profile": profile}).status
    return status


def strays(lab: Lab) -> list[Stray]:
    with lab.ledger.read() as books:
        return [x for each in books.strays().values() for x in each]


@pytest.mark.proves("P1", "R6")
def test_a_create_that_is_late_is_stopped_and_its_gpu_stays_with_its_holder(
    make_lab: Callable[..., Lab], watch: Callable[..., Watchers], engine: OwnedEngine
) -> None:
    """The hub is killed while its create is on its way; the lease is ended, ben has the GPU."""
    with FaultProxy(engine.url) as proxy:
        way = f"c.DockerSpawner.client_kwargs = {{'base_url': {proxy.url!r}}}\n"
        lab = lab_with(make_lab, config=way + AT_ONCE)
        held = proxy.fault("POST", "/containers/create", hang=True, times=1)
        assert ask(lab, "ada") == 202
        assert held.came.wait(30)
        lab.hub.kill()
        ada = lab.last("ada")
        lab.broker.force_end(ada.lease_id, "the hub is dead", "admin:cho", _now())
        bens = ServerKey(hub_id=ada.key.hub_id, user="ben")
        ben = lab.broker.request(Claim(key=bens, profile=WHOLE_H100), _now())
        assert ben.slices == ada.slices
        held.lift()
        late = wait_for("the late container", lambda: lab.containers("ada"))[0]["Id"]
    with contextlib.closing(lab.engine.client()) as client:
        client.start(late)  # the worst: it runs, with the device that is ben's

    assert watch(lab, engine.url).reconciler.round()

    assert lab.containers("ada") == []
    assert strays(lab) == []
    assert [(x.key.user, x.slices) for x in lab.living()] == [("ben", ada.slices)]


@pytest.mark.proves("P1", "R1")
def test_a_ledger_that_was_deleted_is_filled_from_what_runs(
    make_lab: Callable[..., Lab],
) -> None:
    """Hub and agent are killed and come back to no books; ada works on, ben cannot get hers."""
    lab = lab_with(make_lab, agent=True)
    lab.start("ada", profile="whole")
    before, container = lab.last("ada"), lab.container("ada")

    lab.hub.kill()
    file = Path(str(lab.ledger.url.database))
    lab.ledger.close()
    for each in file.parent.glob(f"{file.name}*"):
        each.unlink()
    lab.ledger = Ledger(str(lab.ledger.url))
    lab.hub.start()

    seen: list[int] = []

    def refused() -> bool:
        seen.append(ask(lab, "ben"))
        return seen[-1] == 429

    wait_for("ben to be told that all are in use", refused, timeout=60)
    assert set(seen) <= {429, 503}  # 503 while nobody has looked yet
    (lease,) = lab.living()
    assert (lease.key, lease.state, lease.fence) == (before.key, State.RUNNING, before.fence)
    assert (lease.slices, lease.run_id) == (before.slices, container["Id"])
    assert lab.container("ada")["State"]["StartedAt"] == container["State"]["StartedAt"]
    assert _answers(lab, "ada")
    lab.stop("ada")
    assert lab.living() == []
    assert ask(lab, "ben") in (201, 202)
    lab.hub.wait_server("ben")
    assert lab.last("ben").slices == before.slices
    assert (lab.last("ben").fence or 0) > (before.fence or 0)


def _answers(lab: Lab, user: str) -> bool:
    headers = {"Authorization": f"token {lab.hub.user_token(user)}"}
    return requests.get(f"{lab.hub.url}user/{user}/api", headers=headers, timeout=20).ok


@pytest.mark.proves("R4")
def test_a_container_without_a_lease_is_shown_and_its_device_is_not_offered(
    make_lab: Callable[..., Lab], watch: Callable[..., Watchers], engine: OwnedEngine,
    stub_image: str,
) -> None:  # fmt: skip
    lab = lab_with(make_lab)
    watchers = watch(lab, engine.url)
    uuid = h100(lab)
    with contextlib.closing(engine.client()) as client:

        def run(name: str, **labels: str) -> str:
            request = docker.types.DeviceRequest(
                driver="nvidia", device_ids=[uuid], capabilities=[["gpu"]]
            )
            host = client.create_host_config(device_requests=[request])
            made: str = client.create_container(
                stub_image, name=name, host_config=host, labels=labels
            )["Id"]
            client.start(made)
            return made

        monitor = run("monitor", **{"org.gpuspawner.ignore": "true"})
        assert watchers.reconciler.round()
        assert strays(lab) == []
        assert _free(lab) == 1

        theirs = run("training")
        assert watchers.reconciler.round()
        assert [(x.name, x.devices) for x in strays(lab)] == [("training", (uuid,))]
        assert ask(lab, "ben") == 429
        assert client.inspect_container(theirs)["State"]["Running"]

        client.remove_container(theirs, force=True)
        for _ in range(2):
            watchers.reconciler.round()
        assert strays(lab) == []
        assert ask(lab, "ben") in (201, 202)
        lab.hub.wait_server("ben")
        assert watchers.reconciler.round()
        assert strays(lab) == []
        client.remove_container(monitor, force=True)


def _free(lab: Lab) -> int:
    with lab.ledger.read() as books:
        return availability(books.view(_now()), WHOLE_H100).free


@pytest.mark.proves("P2", "R2")
def test_another_engines_no_ends_nothing(
    make_lab: Callable[..., Lab], watch: Callable[..., Watchers],
    make_engine: Callable[..., OwnedEngine], engine: OwnedEngine,
) -> None:  # fmt: skip
    """``DOCKER_HOST`` of the agent leads to another engine, which has no such container."""
    lab = lab_with(make_lab)
    lab.start("ada", profile="whole")
    before = lab.last("ada")
    with FaultProxy(make_engine().url) as proxy:
        # Two engines of one machine may share their id, which is in a file of the machine.
        proxy.fault("GET", "/info", change=lambda info: {**info, "ID": "another"})
        wrong = watch(lab, proxy.url)
        for _ in range(3):
            assert wrong.guard.round()
            assert wrong.reconciler.round()
    assert _same(lab.last("ada"), before)
    assert lab.container("ada")["State"]["Running"]
    right = watch(lab, engine.url)
    right.guard.round()
    assert _same(lab.last("ada"), before)
    assert (lab.last("ada").last_seen_at or _now()) > (before.last_seen_at or _now())


def _same(one: Lease, other: Lease) -> bool:
    return (one.lease_id, one.state, one.run_id) == (other.lease_id, State.RUNNING, other.run_id)
