"""A lab for end-to-end tests: an engine, a hub, a ledger, and a simulated inventory."""

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import docker.errors

from gpuspawner.broker.broker import Broker
from gpuspawner.broker.invariants import broken_promises
from gpuspawner.domain.devices import HostInventory
from gpuspawner.domain.leases import Lease, State
from gpuspawner.gpus.simulated import SimulatedInventory
from gpuspawner.ledger.store import Ledger
from tests.doubles.fault_proxy import FaultProxy
from tests.rig.engine import OwnedEngine
from tests.rig.hub import HubProcess, docker_config
from tests.rig.processes import wait_for

SPAWNER = "gpuspawner.spawners.docker.GPUDockerSpawner"

PROFILES: list[dict[str, Any]] = [
    {"name": "cpu", "title": "CPU only", "default": True},
    {"name": "share", "title": "Small share", "mode": "time-sliced", "memory": "5GiB",
     "groups": ["ml101"]},
    {"name": "mig-2g", "title": "A100 instance 2g", "mode": "mig", "instance": "2g.10gb"},
    {"name": "whole", "title": "Whole H100", "mode": "whole", "models": ["H100"]},
]  # fmt: skip

# The A100 is cut into three 2g instances by the preset; the two small cards hold two shares each.
DEVICES = [{"select": "2080 Ti", "modes": ["time-sliced"]}]

# A POST or a DELETE answers when all is over, with the true status: never 202.
PATIENT = 'c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 80, "slow_stop_timeout": 80}\n'


def through(proxy: FaultProxy) -> str:
    """Return configuration by which hub and agent reach the engine through a proxy."""
    return f"c.DockerSpawner.client_kwargs = {{'base_url': {proxy.url!r}}}\n"


def agent_with(*arguments: str) -> str:
    """Return configuration of a managed agent with arguments of its own."""
    command = [sys.executable, "-m", "gpuspawner", "agent", *arguments]
    return f'c.JupyterHub.services = [{{"name": "gpu-agent", "command": {command!r}}}]\n'


# Looks each half second and compares each two: what takes the usual agent 5 and 30.
QUICK_AGENT = agent_with("--guard-seconds", "0.5", "--reconcile-seconds", "2")


@dataclass
class Lab:
    """What a test of a whole site holds in its hands."""

    engine: OwnedEngine
    hub: HubProcess
    ledger: Ledger
    inventory: HostInventory
    network: str

    @property
    def broker(self) -> Broker:
        """The books, in the agent's name."""
        return Broker(self.ledger, "agent")

    def leases(self, user: str | None = None) -> list[Lease]:
        """All leases, the oldest first."""
        with self.ledger.read() as books:
            return [x for x in books.recent(limit=10_000)[::-1] if user in (None, x.key.user)]

    def living(self) -> list[Lease]:
        """The living leases."""
        with self.ledger.read() as books:
            return books.living()

    def last(self, user: str) -> Lease:
        """A person's newest lease."""
        return self.leases(user)[-1]

    def containers(self, user: str | None = None) -> list[dict[str, Any]]:
        """The engine's containers as inspected, running or not.

        One that comes or goes at this moment may be listed and not be there.
        """
        found = []
        with contextlib.closing(self.engine.client()) as client:
            for each in client.containers(all=True):
                with contextlib.suppress(docker.errors.NotFound):
                    found.append(client.inspect_container(each["Id"]))
        label = "org.gpuspawner.user"
        return [
            x for x in found if user is None or (x["Config"]["Labels"] or {}).get(label) == user
        ]

    def container(self, user: str) -> dict[str, Any]:
        """A person's one container."""
        found = self.containers(user)
        assert len(found) == 1, [x["Name"] for x in found]
        return found[0]

    def inside(self, container: dict[str, Any]) -> dict[str, str]:
        """The environment that the container's first process got, as seen from inside.

        Of a name that stands there twice the last counts, as it does for a process.
        """
        with contextlib.closing(self.engine.client()) as client:
            call = client.exec_create(container["Id"], ["cat", "/proc/1/environ"])
            text = client.exec_start(call["Id"]).decode()
        return dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)

    def run_in(self, container: dict[str, Any], *command: str) -> str:
        """What a command prints inside a container."""
        with contextlib.closing(self.engine.client()) as client:
            call = client.exec_create(container["Id"], list(command))
            return client.exec_start(call["Id"]).decode()

    def start(self, user: str, server: str = "", **options: Any) -> None:
        """Start a server through the hub's API and wait until it is ready."""
        answer = self.hub.start_server(user, server, options=options)
        assert answer.status in (201, 202), answer.body
        self.hub.wait_server(user, server)

    def stop(self, user: str, server: str = "") -> None:
        """Stop a server and wait until the hub says so."""
        self.hub.stop_server(user, server)
        self.hub.wait_server(user, server, ready=False)

    def wait_ended(self, lease_id: int, timeout: float = 30) -> Lease:
        """Wait until a lease has ended."""

        def look() -> Lease | None:
            with self.ledger.read() as books:
                lease = books.lease(lease_id)
            return lease if lease and lease.state is State.ENDED else None

        return wait_for(f"lease {lease_id} to end", look, timeout)

    def audit(self, lease_id: int) -> list[str]:
        """What was done to a lease, in its order."""
        with self.ledger.read() as books:
            return [entry["action"] for entry in books.audit(lease_id)]

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``gpuspawner`` on this lab's books."""
        url = self.ledger.url.render_as_string(hide_password=False)
        return subprocess.run(
            [sys.executable, "-m", "gpuspawner", *arguments, "--ledger", url],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    def check(self) -> None:
        """The promises, in the books and between books and engine."""
        assert broken_promises(self.ledger) == []
        held: dict[str, str] = {}
        # By the number of the grant: books that were lost gave the lease another number since.
        living = {str(lease.fence): lease for lease in self.living()}
        for container in self.containers():
            labels = container["Config"]["Labels"] or {}
            requests = container["HostConfig"]["DeviceRequests"] or []
            ids = [uuid for request in requests for uuid in request["DeviceIDs"]]
            if not ids or "org.gpuspawner.hub" not in labels:
                assert not ids
                continue
            lease = living[labels["org.gpuspawner.fence"]]
            assert ids == [item.uuid for item in lease.slices]
            if not lease.slices[0].mode.is_share:
                for uuid in ids:
                    assert uuid not in held, f"{uuid} stands in two containers"
                    held[uuid] = container["Name"]


@dataclass
class LabSettings:
    """What a test changes of the ordinary lab."""

    preset: str = "mixed-lab"
    profiles: list[dict[str, Any]] = field(default_factory=lambda: PROFILES)
    devices: list[dict[str, Any]] = field(default_factory=lambda: DEVICES)
    config: str = ""
    groups: dict[str, list[str]] = field(default_factory=dict)
    agent: bool = False
    network: str = "lab"
    books: Path | None = None  # the folder of the ledger; the lab's own otherwise


@contextmanager
def open_lab(
    engine: OwnedEngine,
    make_hub: Callable[..., HubProcess],
    image: str,
    folder: Path,
    settings: LabSettings,
) -> Iterator[Lab]:
    """Start a hub with our spawner on an engine, and fill its pool from a preset."""
    url = f"sqlite:///{settings.books or folder}/ledger.sqlite"
    groups = {name: {"users": users} for name, users in settings.groups.items()}
    agent = "managed" if settings.agent else "external"
    simulate = settings.preset if settings.agent else None
    config = f"""
{docker_config(engine, settings.network, image, spawner=SPAWNER)}
c.JupyterHub.load_groups = {groups!r}
c.JupyterHub.allow_named_servers = True
{settings.config}
import gpuspawner
gpuspawner.configure(
    c, service="external", agent={agent!r}, simulate={simulate!r}, ledger_url={url!r},
    profiles={settings.profiles!r}, devices={settings.devices!r},
)
"""
    ledger = Ledger(url)
    try:
        inventory = _fill(ledger, settings.preset)
        gateway = engine.network(settings.network)
        hub = make_hub(config, hub_ip=gateway)
        lab = Lab(
            engine=engine, hub=hub, ledger=ledger, inventory=inventory, network=settings.network
        )
        yield lab
        lab.check()
    finally:
        ledger.close()


def _fill(ledger: Ledger, preset: str) -> HostInventory:
    """Do what an agent does at its start."""
    import socket

    now = datetime.now(UTC)
    inventory = SimulatedInventory(socket.gethostname(), preset)
    try:
        seen = inventory.look(now)
    finally:
        inventory.close()
    Broker(ledger, "agent").observe(seen, now)
    return seen
