"""Answers lost and requests repeated: the same result as once (R5).

Starts, stops and cancels are repeated at the hub, three at a time and after answers that were
lost; ends at the command line; writes of the hub after a commit of which it was not told. Answers
of the engine that are lost at a create stand in `test_broken_starts`; a stop hook that fails
(case 28) and a stop that is slow (case 19) here.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests

from gpuspawner.domain.leases import State
from gpuspawner.domain.reasons import Code
from tests.doubles.drill import Drill
from tests.doubles.engine_faults import CREATE
from tests.doubles.fault_proxy import FaultProxy
from tests.doubles.hub_faults import SERVER
from tests.e2e.lab import PATIENT, QUICK_AGENT, Lab, through
from tests.rig.hub_api import Answer, HubAPI
from tests.rig.processes import wait_for

pytestmark = [pytest.mark.engine, pytest.mark.proves("R5")]

STOP = r"/containers/[0-9a-f]+/stop"
REMOVE = r"/containers/[0-9a-f]+\?"
WHOLE = {"profile": "whole"}
# What a site's own hook does at the end of each stop, and what becomes of it is the hub's.
FAILING_HOOK = """
def post_stop_hook(spawner):
    raise RuntimeError("a hook of the site fails")
c.Spawner.post_stop_hook = post_stop_hook
"""


@pytest.fixture
def lab(make_lab: Callable[..., Lab], proxy: FaultProxy) -> Lab:
    lab = make_lab(agent=True, config=through(proxy) + PATIENT + QUICK_AGENT + FAILING_HOOK)
    for user in ("ada", "ben"):
        lab.hub.add_user(user)
    return lab


@pytest.fixture
def lossy_hub(lab: Lab) -> Iterator[tuple[HubAPI, FaultProxy]]:
    """The hub's API as one sees it whose answers can get lost."""
    with FaultProxy(f"http://{lab.hub.hub_ip}:{lab.hub.hub_port}/") as way:
        yield HubAPI(way.url + "/" * (not way.url.endswith("/")), lab.hub.token), way


async def three(lab: Lab, method: str, token: str | None = None) -> list[int]:
    """Ask for the same thing three times at once."""
    body = {"user_options": WHOLE} if method == "POST" else None
    answers = await asyncio.gather(
        *(lab.hub.api_async(method, "/users/ada/server", json=body, token=token) for _ in range(3))
    )
    return sorted(answer.status for answer in answers)


def expect_one(lab: Lab, count: int) -> None:
    """Ada has one server, by the newest of so many leases in all."""
    assert [lease.key.user for lease in lab.living()] == ["ada"]
    leases = lab.leases("ada")
    assert len(leases) == count
    assert leases[-1].state is State.RUNNING
    labels = lab.container("ada")["Config"]["Labels"]
    assert labels["org.gpuspawner.fence"] == str(leases[-1].fence)
    assert lab.audit(leases[-1].lease_id).count("grant") == 1
    lab.check()


def expect_none(lab: Lab, code: Code = Code.STOPPED) -> None:
    """Ada has none; her last lease ended once, for one reason, and its GPU is free."""
    lab.hub.wait_server("ada", ready=False)
    lease = lab.wait_ended(lab.last("ada").lease_id)
    assert lab.living() == []
    assert lease.reason is not None
    assert lease.reason.code is code
    assert lab.audit(lease.lease_id).count("end") == 1
    wait_for("the container to go", lambda: not lab.containers("ada"))
    lab.check()
    answer = lab.hub.start_server("ben", options=WHOLE)
    assert answer.status == 201, answer.body
    assert lab.last("ben").slices == lease.slices
    lab.stop("ben")


async def test_the_same_thing_asked_three_times_at_once(lab: Lab, proxy: FaultProxy) -> None:
    for count in (1, 2):
        assert set(await three(lab, "POST")) <= {201, 202, 400}
        lab.hub.wait_server("ada")
        expect_one(lab, count)
        assert set(await three(lab, "POST")) <= {202, 400}  # it runs already
        expect_one(lab, count)
        stopped = await three(lab, "DELETE")
        # To who comes a moment after the first the hub says 500, "pending stop".
        assert set(stopped) <= {202, 204, 500}, stopped
        expect_none(lab)
        assert await three(lab, "DELETE") == [204, 204, 204]  # it is gone already
        expect_none(lab)
    # A start that is given up three times while its create is on its way.
    held = proxy.fault("POST", CREATE, delay=2, times=1)
    start = asyncio.create_task(lab.hub.start_server_async("ada", options=WHOLE))
    assert await asyncio.to_thread(held.came.wait, 20)
    assert set(await three(lab, "DELETE")) <= {202, 204, 500}
    assert (await start).status >= 400
    expect_none(lab)
    assert lab.hub.log().count("a hook of the site fails") > 0  # the failing hook stopped nobody


async def test_a_stop_that_is_slow_is_carried_out_once(lab: Lab, proxy: FaultProxy) -> None:
    """Its owner presses Start, a culler and an admin stop once more (case 19)."""
    lab.start("ada", profile="whole")
    slow = proxy.fault("POST", STOP, delay=4)
    token = lab.hub.user_token("ada")
    first = asyncio.create_task(lab.hub.api_async("DELETE", "/users/ada/server", token=token))
    assert await asyncio.to_thread(slow.came.wait, 20)

    assert set(await three(lab, "POST", token)) == {400}  # "pending stop"
    assert set(await three(lab, "DELETE")) <= {202, 204, 500}

    assert (await first).status == 204
    assert slow.count == 1
    slow.lift()
    expect_none(lab)
    lab.start("ada", profile="whole")
    expect_one(lab, 2)


def test_answers_of_the_hub_are_lost(lab: Lab, lossy_hub: tuple[HubAPI, FaultProxy]) -> None:
    hub, way = lossy_hub

    def lost(method: str, ask: Callable[[], Answer]) -> None:
        with (
            way.during(method, SERVER, lose=True, times=1),
            pytest.raises(requests.RequestException),
        ):
            ask()

    for count in (1, 2):
        lost("POST", lambda: hub.start_server("ada", options=WHOLE))
        assert hub.start_server("ada", options=WHOLE).status == 400  # it runs already
        expect_one(lab, count)
        lost("DELETE", lambda: hub.stop_server("ada"))
        assert hub.stop_server("ada").status == 204
        expect_none(lab)


def test_answers_of_the_engine_are_lost_at_a_stop(lab: Lab, proxy: FaultProxy) -> None:
    for method, path in (("POST", STOP), ("DELETE", REMOVE)):
        lab.start("ada", profile="whole")
        with proxy.during(method, path, lose=True, times=1) as fault:
            assert lab.hub.stop_server("ada").status in (204, 500)
            assert fault.count == 1
        expect_none(lab)


def test_the_command_line_repeats_itself(lab: Lab, proxy: FaultProxy) -> None:
    """An end by force while the engine is silent; what ran by it is stopped, and counted once."""
    lab.start("ada", profile="whole")
    lease = lab.last("ada")
    end = ("end", str(lease.lease_id), "--force", "--yes", "--note", "the host is gone")
    assert lab.cli(*end).returncode == 1  # the engine says that it runs
    with proxy.during("*", "", status=500):
        wait_for("the silence to be noted",
                 lambda: "engine-silent" in lab.cli("leases", "--json").stdout)  # fmt: skip
        said = [lab.cli(*end) for _ in range(3)]
    assert [each.returncode for each in said] == [0, 0, 0], said
    assert "ended by force" in said[0].stdout
    assert said[1].stdout == said[2].stdout
    assert "has ended already" in said[1].stdout
    expect_none(lab, Code.FORCED)

    uuid = lab.inventory.devices[0].uuid
    said = [lab.cli("cordon", uuid, "--note", "a fan") for _ in range(3)]
    assert [each.returncode for each in said] == [0, 0, 0]
    assert len({each.stdout for each in said}) == 1
    assert lab.cli("uncordon", uuid).returncode == 0
    again = lab.cli("uncordon", uuid)
    assert (again.returncode, "no UUID cordoned" in again.stderr) == (1, True), again
    with lab.ledger.read() as books:
        assert books.cordons() == {}


# Each write of the hub, and what of ada's is under way when it is not told of its commit.
UNTOLD = {
    "request": "start", "bind": "start", "run": "start", "detach": "cancel", "end": "stop",
    "want-end": "stop in trouble",
}  # fmt: skip


def test_commits_that_the_hub_is_not_told_of(
    make_lab: Callable[..., Lab], proxy: FaultProxy, tmp_path: Path
) -> None:
    """The write stands, and its writer takes it for lost: asked again, all is right."""
    drill = Drill(tmp_path / "drill")
    listen = f"import os\nos.environ.update({drill.environment('hub')!r})\n"
    lab = make_lab(agent=True, config=through(proxy) + PATIENT + QUICK_AGENT + listen)
    hub = lab.hub
    for user in ("ada", "ben"):
        hub.add_user(user)
    for write, what in UNTOLD.items():
        if what.startswith("stop"):
            lab.start("ada", profile="whole")
        order = drill.order("hub", f"ledger:{write}:after-commit", "fail")
        if what == "start":
            answer = hub.start_server("ada", options=WHOLE)
            assert answer.status == 503, (write, answer)
        elif what == "cancel":
            asyncio.run(_cancel(lab, proxy))
        elif what == "stop":
            assert hub.stop_server("ada").status in (204, 500), write
        else:
            with proxy.during("POST", STOP, status=500):
                assert hub.stop_server("ada").status in (204, 500), write
        drill.wait(order)
        wait_for(f"ada's lease to end after {write}", lambda: not lab.living())
        assert lab.audit(lab.last("ada").lease_id).count("end") == 1, write
        lab.start("ada", profile="whole")
        assert [lease.key.user for lease in lab.living()] == ["ada"]
        lab.check()
        lab.stop("ada")
        expect_none(lab)


async def _cancel(lab: Lab, proxy: FaultProxy) -> None:
    held = proxy.fault("POST", CREATE, delay=1, times=1)
    start = asyncio.create_task(lab.hub.start_server_async("ada", options=WHOLE))
    assert await asyncio.to_thread(held.came.wait, 20)
    assert (await lab.hub.api_async("DELETE", "/users/ada/server")).status in (202, 204)
    assert (await start).status >= 400
