"""The hub in a container, its agent on the host: the how-to's set-up, step by step."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuspawner.domain.leases import State
from gpuspawner.ledger.store import Ledger
from tests.conftest import lacking
from tests.e2e.lab import Lab
from tests.rig import hub_image
from tests.rig.engine import OwnedEngine, missing_for_engine
from tests.rig.hub_container import ACCOUNT, NAME, NETWORK, TAG, HubContainer, page_command
from tests.rig.processes import wait_for
from tools.notebook_image.build import ImageError

pytestmark = pytest.mark.engine

# Run inside a notebook: what it was told, and whether hub and service answer there.
_ASK = """
import json, os, urllib.request
told = {name: os.environ[name] for name in ("JUPYTERHUB_API_URL", "GPUSPAWNER_API_URL")}
def ask(url):
    token = {"Authorization": "token " + os.environ["JUPYTERHUB_API_TOKEN"]}
    with urllib.request.urlopen(urllib.request.Request(url, headers=token), timeout=10) as answer:
        return json.load(answer)
hub = ask(told["JUPYTERHUB_API_URL"] + "/user")["name"]
print(json.dumps([told, hub, ask(told["GPUSPAWNER_API_URL"] + "me")]))
"""


@pytest.fixture(scope="module")
def hub_engine() -> Iterator[OwnedEngine]:
    """An engine that has the hub's image as well."""
    reason = missing_for_engine()
    if reason:
        lacking(reason)
    try:
        seed = hub_image.seed()
    except ImageError as error:
        lacking(str(error))
    with OwnedEngine(seed=seed) as engine:
        with contextlib.closing(engine.client(timeout=120)) as client:
            hub_image.add_checkout(client, TAG)
        # Its folder is root's alone, as a machine's folder of sockets is not.
        engine.folder.chmod(0o711)
        yield engine


@pytest.fixture
def site(
    request: pytest.FixtureRequest, hub_engine: OwnedEngine, stub_image: str, tmp_path: Path
) -> Iterator[Lab]:
    """The site as the page makes it: network, hub, agent; checked against the promises."""
    hub_engine.reset()
    on_server = {}
    if getattr(request, "param", "sqlite") == "postgresql":
        names = {"server": "postgres", "ledger_url": "postgres_url"}
        on_server = {key: request.getfixturevalue(name) for key, name in names.items()}
    hub = HubContainer(hub_engine, tmp_path / "jupyterhub", stub_image, **on_server)
    ledger = Ledger(hub.ledger_url)
    try:
        hub.run(page_command("docker network create "))
        hub.start()
        hub.start_agent()
        wait_for("the agent's report", lambda: "simulated" in status(hub), every=0.5)
        with ledger.read() as books:
            (inventory,) = books.hosts()
        lab = Lab(hub_engine, hub, ledger, inventory, NETWORK)  # type: ignore[arg-type]
        yield lab
        lab.check()
        assert hub.stop_agent() == 0
        assert owners(hub.folder) == {ACCOUNT}
    finally:
        print(hub.log())
        hub.close()
        ledger.close()
        hub_engine.reset()


def status(hub: HubContainer) -> str:
    return hub.run(page_command("docker exec jupyterhub gpuspawner status"))


def owners(folder: Path) -> set[int]:
    return {path.stat().st_uid for path in (folder, *folder.rglob("*"))}


def hub_of(site: Lab) -> HubContainer:
    assert isinstance(site.hub, HubContainer)
    return site.hub


def asked_inside(site: Lab, user: str) -> tuple[dict[str, str], str, dict[str, Any]]:
    told, hub, me = json.loads(site.run_in(site.container(user), "python3", "-c", _ASK))
    return told, hub, me


def run_of(site: Lab, user: str) -> tuple[str, str]:
    """Which container a person's server is, and since when it runs."""
    found = site.container(user)
    return found["Id"], found["State"]["StartedAt"]


def slices_of(site: Lab, user: str) -> list[str]:
    hub = hub_of(site)
    answer: Any = hub.service("slices", hub.user_token("admin"))
    return [item["device_uuid"] for item in answer["slices"] if item["user"] == user]


def inspected(site: Lab, container: str) -> dict[str, Any]:
    with contextlib.closing(site.engine.client()) as client:
        found: dict[str, Any] = client.inspect_container(container)
    return found


def address_of_hub(site: Lab) -> str:
    return str(inspected(site, NAME)["NetworkSettings"]["Networks"][NETWORK]["IPAddress"])


def remove_by_hand(site: Lab, user: str) -> None:
    with contextlib.closing(site.engine.client()) as client:
        client.remove_container(site.container(user)["Id"], force=True)


def is_well(hub: HubContainer) -> bool:
    return hub.service("health").get("status") == "ok"


@pytest.mark.parametrize(
    "site",
    ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)],
    indirect=True,
)
def test_a_notebook_has_its_gpu_and_finds_hub_and_service(site: Lab) -> None:
    hub = hub_of(site)
    site.start("ada", profile="whole")
    lease = site.last("ada")
    (held,) = lease.slices
    inside = site.inside(site.container("ada"))
    assert inside["NVIDIA_VISIBLE_DEVICES"] == inside["GPU_UUIDS"] == held.uuid

    told, name, me = asked_inside(site, "ada")
    assert told["JUPYTERHUB_API_URL"] == f"http://{NAME}:8081/hub/api"
    assert told["GPUSPAWNER_API_URL"] == f"http://{NAME}:8095/services/gpu/api/"
    assert (name, me["user"], me["kind"]) == ("ada", "ada", "notebook")
    assert [item["lease_id"] for item in me["living"]] == [lease.lease_id]

    wait_for("the service to be well", lambda: is_well(hub), every=0.5)
    assert slices_of(site, "ada") == [held.device_uuid]
    assert "ada" in status(hub)
    assert "ada" in hub.run(page_command("docker exec jupyterhub gpuspawner leases"))
    # Nothing comes from a path of the hub's container, nor of the host (H22).
    assert {mount["Type"] for mount in site.container("ada")["Mounts"]} <= {"volume"}
    # The proxy's own API is the hub's alone.
    refused = site.run_in(
        site.container("ada"), "python3", "-c",
        f"import socket; socket.create_connection(('{NAME}', 8001), 5)",
    )  # fmt: skip
    assert "ConnectionRefusedError" in refused

    remove_by_hand(site, "ada")
    assert site.wait_ended(lease.lease_id).slices == lease.slices
    hub.wait_server("ada", ready=False, timeout=30)
    assert site.living() == []

    site.start("ada", profile="whole")
    site.stop("ada")
    assert site.wait_ended(site.last("ada").lease_id).state is State.ENDED
    assert site.containers("ada") == []


def test_notebooks_outlive_a_restart_and_an_upgrade(site: Lab) -> None:
    hub = hub_of(site)
    site.start("ada", profile="whole")
    site.start("ben", profile="whole")
    before, lease, bens = run_of(site, "ada"), site.last("ada"), site.last("ben")

    hub.run(page_command("docker restart "))
    hub.wait_up()
    still_there(site, before, lease.lease_id)

    address = address_of_hub(site)
    hub.run(page_command("docker stop "))
    assert inspected(site, NAME)["State"]["ExitCode"] == 0
    hub.run(f"docker run --detach --network {NETWORK} {TAG} sleep 300")  # takes a free address
    remove_by_hand(site, "ben")
    ended = site.wait_ended(bens.lease_id)
    with site.ledger.read() as books:
        actors = [x["actor"] for x in books.audit(bens.lease_id) if x["action"] == "end"]
    assert actors == [f"agent:{ended.slices[0].host_id}"]

    hub.run(page_command("docker rm "))
    hub.start()
    assert address_of_hub(site) != address
    still_there(site, before, lease.lease_id)
    hub.wait_server("ben", ready=False, timeout=30)
    site.start("ben", profile="whole")
    assert slices_of(site, "ben") == [item.device_uuid for item in site.last("ben").slices]


def still_there(site: Lab, before: tuple[str, str], lease_id: int) -> None:
    """Ada's server runs on, is shown ready, and finds hub and service again."""
    hub = hub_of(site)
    hub.wait_server("ada")
    assert run_of(site, "ada") == before
    assert [x.lease_id for x in site.leases("ada")] == [lease_id]
    assert site.last("ada").state is State.RUNNING
    wait_for("the service to be well", lambda: is_well(hub), every=0.5)
    _, name, me = asked_inside(site, "ada")
    assert (name, [item["lease_id"] for item in me["living"]]) == ("ada", [lease_id])
