"""A hub that runs plain DockerSpawner takes gpuspawner up by one call, and can let it go again."""

import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from docker.types import DeviceRequest

from gpuspawner.broker.invariants import broken_promises
from gpuspawner.domain.devices import Trouble
from gpuspawner.ledger.store import Ledger
from tests.e2e.lab import PROFILES
from tests.rig.engine import OwnedEngine
from tests.rig.hub import HubProcess, docker_config
from tests.rig.processes import wait_for

pytestmark = pytest.mark.engine

CALL = """
import gpuspawner
gpuspawner.configure(
    c, service="external", simulate="mixed-lab", ledger_url={ledger!r}, profiles={profiles!r},
)
"""
OWN_VOLUME = "jupyterhub-user-{username}"


class Site:
    """A hub whose file names DockerSpawner, its engine, and the call that may be added."""

    def __init__(self, engine: OwnedEngine, hub: HubProcess, config: str, ledger: Ledger) -> None:
        self.engine, self.hub, self.ledger = engine, hub, ledger
        self._config = config
        self.call = CALL.format(ledger=str(ledger.url), profiles=PROFILES)

    def restart_with(self, added: str) -> None:
        self.hub.terminate()
        self.hub.write_config(self._config + added)
        self.hub.start()

    def containers(self) -> dict[str, dict[str, Any]]:
        """Return what runs, by its name."""
        with contextlib.closing(self.engine.client()) as client:
            found = [client.inspect_container(each["Id"]) for each in client.containers()]
        return {each["Name"].lstrip("/"): each for each in found}

    def run_in(self, name: str, *command: str) -> str:
        with contextlib.closing(self.engine.client()) as client:
            call = client.exec_create(name, list(command), user="root")
            return client.exec_start(call["Id"]).decode()

    def start(self, user: str, **options: Any) -> None:
        answer = self.hub.start_server(user, options=options)
        assert answer.status in (201, 202), answer.body
        self.hub.wait_server(user)

    def stop(self, user: str) -> None:
        self.hub.stop_server(user)
        self.hub.wait_server(user, ready=False)


@pytest.fixture
def site(
    engine: OwnedEngine, make_hub: Callable[..., HubProcess], stub_image: str, tmp_path: Path
) -> Iterator[Site]:
    gateway = engine.network("site")
    config = (
        docker_config(engine, "site", stub_image)
        + f"""
c.JupyterHub.cleanup_servers = False
c.DockerSpawner.volumes = {{{OWN_VOLUME!r}: "/home/jovyan/work"}}
"""
    )
    hub = make_hub(config, hub_ip=gateway)
    ledger = Ledger(f"sqlite:///{tmp_path}/ledger.sqlite")
    try:
        yield Site(engine, hub, config, ledger)
        assert broken_promises(ledger) == []
    finally:
        ledger.close()


def mounts_of(container: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each.get("Name", ""), each["Destination"]) for each in container["Mounts"]]


def test_one_call_takes_it_up_and_its_removal_lets_it_go(site: Site) -> None:
    for user in ("ada", "ben"):
        site.start(user)
    site.run_in("jupyter-ada", "sh", "-c", "echo kept > /home/jovyan/work/note")
    before = site.containers()
    assert sorted(before) == ["jupyter-ada", "jupyter-ben"]

    site.restart_with(site.call)

    for user in ("ada", "ben"):
        model = site.hub.server(user)
        assert model is not None
        assert model["ready"]
    after = site.containers()
    assert {name: each["Id"] for name, each in after.items()} == {
        name: each["Id"] for name, each in before.items()
    }
    assert [each["State"]["StartedAt"] for each in after.values()] == [
        each["State"]["StartedAt"] for each in before.values()
    ]

    wait_for("the agent to see the H100", lambda: _uuid(site.ledger, "H100"), 60)

    # A stop and a start of one: the same name and the same volume, and no other home.
    site.stop("ada")
    assert sorted(site.containers()) == ["jupyter-ben"]
    site.start("ada", profile="whole")
    ada = site.containers()["jupyter-ada"]
    assert mounts_of(ada) == mounts_of(before["jupyter-ada"])
    assert site.run_in("jupyter-ada", "cat", "/home/jovyan/work/note") == "kept\n"
    with site.ledger.read() as books:
        (lease,) = books.living()
    assert (lease.key.user, lease.run_id) == ("ada", ada["Id"])

    site.restart_with("")  # without the call it is DockerSpawner's again

    assert {name: each["Id"] for name, each in site.containers().items()} == {
        "jupyter-ada": ada["Id"],
        "jupyter-ben": before["jupyter-ben"]["Id"],
    }
    for user in ("ada", "ben"):
        assert site.hub.server(user) is not None
        site.stop(user)
    assert site.containers() == {}

    site.restart_with(site.call)  # and taken up once more, the books learn what went meanwhile
    ended = wait_for("the lease to end", lambda: _is_over(site.ledger), 30)
    assert ended


def _is_over(ledger: Ledger) -> bool:
    with ledger.read() as books:
        return books.living() == []


def test_who_has_a_gpu_without_a_lease_is_shown_and_keeps_it(site: Site, stub_image: str) -> None:
    site.restart_with(site.call)
    h100 = wait_for("the agent to see the H100", lambda: _uuid(site.ledger, "H100"), 30)
    with contextlib.closing(site.engine.client()) as client:
        request = DeviceRequest(driver="nvidia", device_ids=[h100], capabilities=[["gpu"]])
        made = client.create_container(
            stub_image, ["sleep", "600"], name="training",
            host_config=client.create_host_config(device_requests=[request]),
        )  # fmt: skip
        client.start(made["Id"])
        wait_for("it to be seen", lambda: _trouble(site.ledger, h100) is Trouble.FOREIGN, 40)

        refused = site.hub.start_server("ada", options={"profile": "whole"})
        assert refused.status == 429, refused.body
        assert client.inspect_container(made["Id"])["State"]["Running"]

        client.remove_container(made["Id"], force=True)
    wait_for("the device to be free again", lambda: _trouble(site.ledger, h100) is None, 75)
    site.start("ada", profile="whole")
    with site.ledger.read() as books:
        assert books.living()[0].slices[0].uuid == h100
    site.stop("ada")


def _uuid(ledger: Ledger, model: str) -> str | None:
    with ledger.read() as books:
        devices = [device for host in books.hosts() for device in host.devices]
    return next((str(each.uuid) for each in devices if model in each.model), None)


def _trouble(ledger: Ledger, uuid: str) -> Trouble | None:
    with ledger.read() as books:
        unavailable = books.view(datetime.now(UTC)).devices[uuid].unavailable
    return None if unavailable is None else unavailable.trouble
