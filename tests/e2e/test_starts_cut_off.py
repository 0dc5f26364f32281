"""A start that is cut off, in each of the ways that a hub has, leaves nothing wrong (H7, H8)."""

import asyncio
import time
from collections.abc import Callable, Iterator
from statistics import quantiles
from typing import Any

import pytest
import requests

from gpuspawner.domain.leases import State
from gpuspawner.domain.reasons import Code
from tests.doubles.fault_proxy import FaultProxy
from tests.doubles.faults import Fault
from tests.e2e.lab import PROFILES, Lab
from tests.rig.engine import OwnedEngine
from tests.rig.processes import wait_for

pytestmark = pytest.mark.engine

CREATE = "/containers/create"
INSPECT = r"/containers/[0-9a-f]+/json"
# A POST answers at once: the test goes on while the server starts.
AT_ONCE = 'c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 0}\n'


@pytest.fixture
def proxy(engine: OwnedEngine) -> Iterator[FaultProxy]:
    """The hub's way to the engine."""
    with FaultProxy(engine.url) as proxy:
        yield proxy


@pytest.fixture
def make_site(proxy: FaultProxy, make_lab: Callable[..., Lab]) -> Iterator[Callable[..., Lab]]:
    """Make labs whose hub (and agent) go through the proxy; none of it may surprise the hub."""
    made: list[Lab] = []

    def make(config: str = "", **changes: Any) -> Lab:
        way = f"c.DockerSpawner.client_kwargs = {{'base_url': {proxy.url!r}}}\n"
        lab = make_lab(config=way + AT_ONCE + config, **changes)
        for user in ("ada", "ben"):
            lab.hub.add_user(user)
        made.append(lab)
        return lab

    yield make
    for lab in made:
        for words in ("Traceback", "never retrieved"):
            assert words not in lab.hub.log()


def begin(lab: Lab, held: Fault, profile: str = "whole", user: str = "ada") -> None:
    """Ask for a server, and return when its create is on its way to the engine."""
    answer = lab.hub.start_server(user, options={"profile": profile})
    assert answer.status in (201, 202), answer.body
    assert held.came.wait(30), lab.hub.log_tail()


def expect_nothing_left(lab: Lab, held: Fault) -> None:
    """The late create was carried out; no container, no living lease, and the next start works."""
    assert held.passed.wait(30)
    wait_for("the container to be removed", lambda: not lab.containers("ada"))
    wait_for("the lease to end", lambda: not lab.living())
    assert lab.hub.server("ada") is None
    lab.check()
    lab.start("ada", profile="whole")
    assert [lease.key.user for lease in lab.living()] == ["ada"]
    assert lab.container("ada")["State"]["Running"]


@pytest.mark.proves("R5")
@pytest.mark.parametrize("profile", ["whole", "cpu"])
def test_a_delete_while_the_create_is_slow(
    make_site: Callable[..., Lab], proxy: FaultProxy, profile: str
) -> None:
    lab = make_site()
    held = proxy.fault("POST", CREATE, delay=3, times=1)
    begin(lab, held, profile)

    answer = lab.hub.stop_server("ada")

    assert answer.status in (202, 204), answer.body
    lab.hub.wait_server("ada", ready=False)
    if profile == "whole":
        lease = lab.wait_ended(lab.last("ada").lease_id)
        assert lease.reason is not None
        assert lease.reason.code in (Code.STOPPED, Code.GIVEN_UP)
        assert lease.detached_at is not None
    expect_nothing_left(lab, held)


@pytest.mark.proves("R6")
@pytest.mark.parametrize("profile", ["whole", "cpu"])
def test_the_start_timeout_hits_while_the_create_is_slow(
    make_site: Callable[..., Lab], proxy: FaultProxy, profile: str
) -> None:
    lab = make_site("c.Spawner.start_timeout = 2")
    held = proxy.fault("POST", CREATE, delay=5, times=1)
    begin(lab, held, profile)

    lab.hub.wait_server("ada", ready=False)

    assert held.passed.wait(30)
    wait_for("the container to be removed", lambda: not lab.containers("ada"))
    wait_for("the lease to end", lambda: not lab.living())
    file = lab.hub.config_path
    file.write_text(file.read_text().replace("start_timeout = 2", "start_timeout = 60"))
    lab.hub.restart()
    expect_nothing_left(lab, held)


def test_the_hub_ends_in_order_and_takes_its_servers_along(
    make_site: Callable[..., Lab], proxy: FaultProxy
) -> None:
    """stop() comes while start() still runs (cleanup_servers)."""
    lab = make_site("c.JupyterHub.cleanup_servers = True")
    held = proxy.fault("POST", CREATE, delay=3, times=1)
    begin(lab, held)

    lab.hub.terminate()

    assert held.passed.wait(30)
    wait_for("the container to be removed", lambda: not lab.containers("ada"))
    wait_for("the lease to end", lambda: not lab.living())
    lab.hub.start()
    expect_nothing_left(lab, held)


@pytest.mark.proves("R6")
def test_the_hub_is_killed_between_grant_and_create(
    make_site: Callable[..., Lab], proxy: FaultProxy
) -> None:
    """Its create reaches the engine after its death; the user presses Start again."""
    lab = make_site()
    held = proxy.fault("POST", CREATE, delay=2, times=1)
    begin(lab, held)
    first = lab.last("ada")
    assert first.state is State.GRANTED

    lab.hub.kill()
    assert held.passed.wait(30)
    (late,) = lab.containers("ada")
    assert late["State"]["Status"] == "created"
    lab.hub.start()

    assert lab.hub.server("ada") is None or not lab.hub.server("ada")["ready"]  # type: ignore[index]
    lab.start("ada", profile="whole")
    (lease,) = lab.living()
    assert lease.key.user == "ada"
    assert lease.fence > first.fence  # type: ignore[operator]
    assert lab.container("ada")["Id"] != late["Id"]
    assert lab.last("ada").state is State.RUNNING


def test_the_hub_is_killed_and_comes_back_to_its_server(make_site: Callable[..., Lab]) -> None:
    lab = make_site()
    lab.start("ada", profile="whole")
    before, lease = lab.container("ada"), lab.last("ada")

    lab.hub.kill()
    lab.hub.start()

    lab.hub.wait_server("ada")
    _expect_adopted(lab, before["Id"], lease.lease_id)
    lab.stop("ada")
    assert lab.living() == []


def test_the_hub_is_killed_before_it_knows_the_address(
    make_site: Callable[..., Lab], proxy: FaultProxy
) -> None:
    """The container runs, the database has no address: the engine has it (H14)."""
    lab = make_site()
    started = proxy.fault("POST", r"/containers/[0-9a-f]+/start", keep=True, times=1)
    begin(lab, started)
    assert started.passed.wait(30)
    before, lease = lab.container("ada"), lab.last("ada")
    assert before["State"]["Running"]

    lab.hub.kill()
    started.lift()
    lab.hub.start()

    lab.hub.wait_server("ada")
    _expect_adopted(lab, before["Id"], lease.lease_id)
    lab.stop("ada")
    assert lab.living() == []
    assert lab.containers("ada") == []


def _expect_adopted(lab: Lab, container_id: str, lease_id: int) -> None:
    assert lab.container("ada")["Id"] == container_id
    assert lab.container("ada")["State"]["Running"]
    (lease,) = lab.living()
    assert lease.lease_id == lease_id
    token = lab.hub.user_token("ada")
    answer = requests.get(
        f"{lab.hub.url}user/ada/api", headers={"Authorization": f"token {token}"}, timeout=20
    )
    assert (answer.status_code, answer.json()) == (200, {"version": "2.0.0"})
    lab.check()


@pytest.mark.proves("P2", "R3")
def test_an_engine_that_answers_500_ends_nothing(
    make_site: Callable[..., Lab], proxy: FaultProxy
) -> None:
    """Ten polls of the hub and some rounds of the agent; upstream says stopped at the first."""
    lab = make_site("c.Spawner.poll_interval = 1", agent=True)
    lab.start("ada", profile="whole")
    before, lease = lab.container("ada")["Id"], lab.last("ada").lease_id

    with proxy.during("GET", INSPECT, status=500) as fault:
        wait_for("the hub and the agent to look", lambda: fault.count >= 12, timeout=60)
        page = requests.get(f"{lab.hub.url}hub/spawn-pending/ada", timeout=20)
        assert page.status_code in (200, 403, 404)
        assert lab.hub.server("ada")["ready"]  # type: ignore[index]
        assert lab.last("ada").state is State.RUNNING

    assert lab.container("ada")["Id"] == before
    assert [x.lease_id for x in lab.living()] == [lease]
    count = len(proxy.requests)
    wait_for("more looks", lambda: len(proxy.requests) > count + 6)
    assert lab.hub.server("ada")["ready"]  # type: ignore[index]
    lab.stop("ada")
    assert lab.living() == []


@pytest.mark.proves("R14")
def test_a_pull_that_hangs_slows_nobody_else(
    make_site: Callable[..., Lab], proxy: FaultProxy
) -> None:
    far = {"name": "far", "title": "Far", "images": ["127.0.0.1:1/far:1"]}
    lab = make_site(profiles=[*PROFILES, far])

    def seconds() -> float:
        began = time.monotonic()
        lab.start("ben", profile="cpu")
        took = time.monotonic() - began
        lab.stop("ben")
        return took

    alone = min(seconds() for _ in range(3))
    pull = proxy.fault("POST", "/images/create", hang=True)
    begin(lab, pull, "far")

    beside = min(seconds() for _ in range(3))

    assert lab.hub.server("ada")["pending"] == "spawn"  # type: ignore[index]
    assert beside < 2 * alone
    pull.lift()
    lab.hub.wait_server("ada", ready=False)  # the registry refuses
    assert lab.containers() == []


@pytest.mark.proves("P7", "R14")
async def test_the_hub_answers_while_the_engine_hangs(
    make_site: Callable[..., Lab], engine: OwnedEngine
) -> None:
    """Nothing of ours blocks its event loop: polls, starts, stops and pages all wait in threads."""
    lab = make_site("c.Spawner.poll_interval = 1")
    lab.start("ada", profile="whole")

    async def latencies(count: int) -> list[float]:
        took = []
        for _ in range(count):
            began = time.monotonic()
            answer = await lab.hub.api_async("GET", "/users/ada")
            took.append(time.monotonic() - began)
            assert answer.status == 200
            await asyncio.sleep(0.1)
        return took

    usual = await latencies(40)
    engine.freeze()
    try:
        began = time.monotonic()
        start = asyncio.create_task(lab.hub.start_server_async("ben", options={"profile": "cpu"}))
        hanging = await latencies(90)
        assert time.monotonic() - began > 9
        assert lab.hub.server("ada")["ready"]  # type: ignore[index]
    finally:
        engine.thaw()
    assert (await start).status in (201, 202)
    lab.hub.wait_server("ben")

    usual_p95, p95 = (quantiles(each, n=20)[-1] for each in (usual, hanging))
    print(f"hub GET p95: {usual_p95 * 1000:.0f} ms, engine hanging: {p95 * 1000:.0f} ms")
    assert p95 < max(0.2, 2 * usual_p95)
