"""One server after the other: nothing leaks from one start into the next."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from gpuspawner.domain.leases import State
from gpuspawner.domain.reasons import Code
from tests.e2e.lab import PROFILES, QUICK_AGENT, Lab
from tests.rig.engine import OwnedEngine
from tests.rig.processes import wait_for

pytestmark = pytest.mark.engine

OURS = ("GPU_MODE", "GPU_UUIDS", "GPU_MEM_LIMIT", "GPU_COMPUTE_LIMIT", "NVIDIA_DRIVER_CAPABILITIES")


@pytest.mark.parametrize("remove", [True, False])
def test_each_start_has_its_own_profile_and_files_stay(
    make_lab: Callable[..., Lab], images: Any, remove: bool
) -> None:
    """Whole that fails, CPU, share, CPU, another image (case 13); home kept under all."""
    profiles = [
        *PROFILES,
        {"name": "broken", "title": "Broken", "mode": "whole", "models": ["H100"],
         "images": [images.exits_at_once]},
        {"name": "other", "title": "Other image", "images": [images.sees_all_gpus]},
    ]  # fmt: skip
    lab = make_lab(
        profiles=profiles,
        groups={"ml101": ["ada"]},
        config=f"c.GPUDockerSpawner.remove = {remove}",
    )
    lab.hub.add_user("ada")
    tokens = set()

    failed = lab.hub.start_server("ada", options={"profile": "broken"})
    assert failed.status == 500
    assert "3" in failed.body["message"]
    assert "no kernel to be found" in failed.body["message"]
    assert lab.containers() == []
    assert lab.last("ada").reason.code is Code.DIED_AT_BOOT  # type: ignore[union-attr]
    assert lab.living() == []

    def inspect_running() -> tuple[dict[str, Any], dict[str, str]]:
        container = lab.container("ada")
        inside = lab.inside(container)
        tokens.add(inside["JUPYTERHUB_API_TOKEN"])
        return container, inside

    lab.start("ada", profile="cpu")
    container, inside = inspect_running()
    assert container["HostConfig"]["DeviceRequests"] is None
    assert not [name for name in OURS if name in inside]
    lab.run_in(container, "sh", "-c", "echo mine > /home/jovyan/work.txt")
    lab.stop("ada")
    assert len(lab.containers()) == (0 if remove else 1)

    lab.start("ada", profile="share")
    container, inside = inspect_running()
    assert inside["GPU_MODE"] == "time-sliced"
    assert inside["GPU_MEM_LIMIT"] == str(5 * 1024**3)
    assert lab.run_in(container, "cat", "/home/jovyan/work.txt") == "mine\n"
    lab.stop("ada")
    assert lab.containers() == []  # one that names a device never stays, whatever remove says

    lab.start("ada", profile="cpu")
    container, inside = inspect_running()
    assert container["HostConfig"]["DeviceRequests"] is None
    assert inside["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert not [name for name in OURS if name in inside]
    assert lab.run_in(container, "cat", "/home/jovyan/work.txt") == "mine\n"
    lab.stop("ada")

    lab.start("ada", profile="other")
    container, inside = inspect_running()
    assert container["Config"]["Image"] == images.sees_all_gpus
    assert inside["NVIDIA_VISIBLE_DEVICES"] == "void"
    lab.stop("ada")

    lab.start("ada", profile="cpu")
    container, inside = inspect_running()
    assert container["Config"]["Image"] == images.stub
    assert inside["JUPYTER_IMAGE_SPEC"] == images.stub
    assert lab.run_in(container, "cat", "/home/jovyan/work.txt") == "mine\n"
    assert len(tokens) == 5  # never an old token


@pytest.mark.proves("P4")
def test_a_kept_container_is_never_started_with_somebody_elses_device(
    make_lab: Callable[..., Lab],
) -> None:
    """ada had GPU-0; it is ben's now; she gets another one and a new container (case 06)."""
    profiles = [
        {"name": "cpu", "title": "CPU only"},
        {"name": "whole", "title": "Whole A100", "mode": "whole"},
    ]
    lab = make_lab(
        preset="four-a100",
        profiles=profiles,
        devices=[],
        config="c.GPUDockerSpawner.remove = False",
    )
    lab.hub.add_user("ada")
    lab.hub.add_user("ben")
    lab.start("ada", profile="whole")
    first = lab.last("ada").slices[0].uuid
    old_token = lab.inside(lab.container("ada"))["JUPYTERHUB_API_TOKEN"]
    lab.stop("ada")
    lab.start("ben", profile="whole")
    assert lab.last("ben").slices[0].uuid == first

    lab.start("ada", profile="whole")

    container = lab.container("ada")
    (request,) = container["HostConfig"]["DeviceRequests"]
    assert request["DeviceIDs"] == [lab.last("ada").slices[0].uuid]
    assert request["DeviceIDs"] != [first]
    assert lab.inside(container)["JUPYTERHUB_API_TOKEN"] != old_token
    named_first = [
        x for x in lab.containers()
        if any(first in r["DeviceIDs"] for r in x["HostConfig"]["DeviceRequests"] or [])
    ]  # fmt: skip
    assert [x["Config"]["Labels"]["org.gpuspawner.user"] for x in named_first] == ["ben"]


@pytest.mark.parametrize(
    ("config", "code", "status", "said"),
    [
        pytest.param(
            "c.GPUDockerSpawner.image = 'no-such-image:1'\nc.GPUDockerSpawner.pull_policy='never'",
            Code.IMAGE_MISSING, 500, "no-such-image:1", id="image-absent",
        ),
        pytest.param(
            "c.GPUDockerSpawner.network_name = 'no-such-network'",
            Code.START_FAILED, 500, "no-such-network", id="network-unknown",
        ),
        pytest.param(
            "c.GPUDockerSpawner.extra_host_config = {'storage_opt': {'size': '1G'}}",
            Code.CREATE_FAILED, 500, "storage", id="create-refused",
        ),
        pytest.param(
            "c.GPUDockerSpawner.extra_host_config = {'restart_policy': {'Name': 'always'}}",
            Code.SITE_SETTING, 409, "restart_policy", id="restart-policy",
        ),
        pytest.param(
            "from docker.types import DeviceRequest\n"
            "c.GPUDockerSpawner.extra_host_config = {'device_requests': "
            "[DeviceRequest(driver='nvidia', count=-1, capabilities=[['gpu']])]}",
            Code.SITE_SETTING, 409, "device_requests", id="own-device-request",
        ),
        pytest.param(
            "def hook(spawner):\n    raise RuntimeError('a hook of the site fails')\n"
            "c.GPUDockerSpawner.post_start_cmd = 'true'\n"
            "async def fail(self):\n    raise RuntimeError('a site override fails')\n"
            "import gpuspawner.spawners.docker as module\n"
            "module.GPUDockerSpawner.post_start_exec = fail",
            Code.INTERNAL, 500, "", id="unexpected-error",
        ),
    ],
)  # fmt: skip
def test_a_start_that_fails_leaves_nothing_and_says_why(
    make_lab: Callable[..., Lab], config: str, code: Code, status: int, said: str
) -> None:
    """After a break in each step the slice is back at once (case 03)."""
    lab = make_lab(config=config)
    lab.hub.add_user("ada")

    answer = lab.hub.start_server("ada", options={"profile": "whole"})

    assert answer.status == status, answer.body
    assert said in answer.body["message"]
    assert lab.containers("ada") == []
    assert lab.living() == []
    lease = lab.last("ada")
    assert lease.state is State.ENDED
    assert lease.reason is not None
    assert lease.reason.code is code
    lab.check()


def test_odd_names_get_names_of_their_own(make_lab: Callable[..., Lab]) -> None:
    """Names, volumes and labels differ and lead back to user and server (case 59)."""
    lab = make_lab(profiles=[{"name": "cpu", "title": "CPU only"}])
    users = ["a-b", "a", "a--b", "a_b", "a.b", "ä", "x" * 60]
    # New server names are slugs; odd ones are rows of an older hub.
    # (Letters that no user's name ends in: the hub itself gives `a-b` and the server `b` of `a`
    # one OAuth client, and refuses the second.)
    servers = ["", "d", "-d", "d-c", "s" * 60, "D"]
    pairs = [(user, "") for user in users] + [("a", server) for server in servers[1:]]
    for user in users:
        lab.hub.add_user(user)
    _add_old_rows(lab, "a", servers[2:])

    for user, server in pairs:
        answer = lab.hub.start_server(user, server, options={})
        assert answer.status in (201, 202), (user, server, answer.body)
        lab.hub.wait_server(user, server)

    found = lab.containers()
    assert len({x["Name"] for x in found}) == len(pairs)
    labels = [x["Config"]["Labels"] for x in found]
    keys = {(x["org.gpuspawner.user"], x["org.gpuspawner.server"]) for x in labels}
    assert keys == set(pairs)
    volumes: dict[str, set[str]] = {}
    for container in found:
        (bind,) = container["HostConfig"]["Binds"]
        user = container["Config"]["Labels"]["org.gpuspawner.user"]
        volumes.setdefault(user, set()).add(bind.split(":")[0])
    assert all(len(names) == 1 for names in volumes.values())  # one home per person
    assert len({next(iter(names)) for names in volumes.values()}) == len(users)


def _add_old_rows(lab: Lab, user: str, servers: list[str]) -> None:
    """Put servers into the hub's database that the present hub would not let one make."""
    import sqlite3

    lab.hub.terminate()
    with contextlib.closing(sqlite3.connect(lab.hub.directory / "jupyterhub.sqlite")) as database:
        (user_id,) = database.execute("SELECT id FROM users WHERE name = ?", (user,)).fetchone()
        columns = [row[1] for row in database.execute("PRAGMA table_info(spawners)")]
        assert {"user_id", "name", "state"} <= set(columns)
        for server in servers:
            database.execute(
                "INSERT INTO spawners (user_id, name, state) VALUES (?, ?, '{}')", (user_id, server)
            )
        database.commit()
    lab.hub.start()


def test_what_runs_under_a_former_name_can_be_stopped(make_lab: Callable[..., Lab]) -> None:
    """The hub renames people whose servers run; such a server must not run on for ever."""
    lab = make_lab(agent=True, config=QUICK_AGENT)
    lab.hub.add_user("ada")
    for profile in ("cpu", "whole"):
        lab.start("ada", profile=profile)
        assert lab.hub.api("PATCH", "/users/ada", json={"name": "cho"}).status == 200
        (container,) = lab.containers()
        wait_for("the hub to look again", lambda: lab.hub.api("GET", "/users/cho").body["servers"])

        assert lab.hub.api("DELETE", "/users/cho/server").status in (202, 204)

        lab.hub.wait_server("cho", ready=False)
        assert lab.containers() == [], container["Name"]
        wait_for("the slice to come back", lambda: lab.living() == [])
        assert lab.hub.api("PATCH", "/users/cho", json={"name": "ada"}).status == 200


def test_two_hubs_on_one_engine_never_touch_each_other(
    make_lab: Callable[..., Lab], engine: OwnedEngine
) -> None:
    """The same user name at two hubs: two containers, two homes, two ends (case 60)."""
    one = make_lab(network="one", profiles=[{"name": "cpu", "title": "CPU only"}])
    two = make_lab(network="two", profiles=[{"name": "cpu", "title": "CPU only"}])
    for lab in (one, two):
        lab.hub.add_user("ada")
        lab.start("ada", profile="cpu")

    found = one.containers("ada")
    assert len(found) == 2
    assert len({x["Name"] for x in found}) == 2
    assert len({x["HostConfig"]["Binds"][0] for x in found}) == 2
    two.stop("ada")
    (left,) = one.containers("ada")
    assert left["State"]["Running"]
    one.hub.wait_server("ada")


def test_a_name_that_is_somebody_elses_is_never_removed(
    make_lab: Callable[..., Lab], engine: OwnedEngine, stub_image: str
) -> None:
    """A site keeps its own name template, and a foreign container has the name already."""
    lab = make_lab(
        profiles=[{"name": "cpu", "title": "CPU only"}],
        config="c.DockerSpawner.name_template = 'jupyter-{username}'",
    )
    lab.hub.add_user("ada")
    with contextlib.closing(engine.client()) as client:
        foreign = client.create_container(stub_image, name="jupyter-ada")["Id"]

    lab.start("ada", profile="cpu")

    container = lab.container("ada")
    hub_id = container["Config"]["Labels"]["org.gpuspawner.hub"]
    assert container["Name"] == f"/jupyter-ada-{hub_id}"
    lab.stop("ada")
    with contextlib.closing(engine.client()) as client:
        assert client.inspect_container(foreign)["State"]["Status"] == "created"
