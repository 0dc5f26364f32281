"""A hub with its service and its books, for tests of the service under a real hub."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuspawner.broker.broker import Broker
from gpuspawner.domain.attribution import Origin, attribute
from gpuspawner.domain.devices import HostId
from gpuspawner.domain.leases import Claim, Evidence, Lease, ServerKey, Source
from gpuspawner.domain.policy import Policy, parse_policy
from gpuspawner.domain.reasons import Code, RefusedError, reason
from gpuspawner.gpus.simulated import SimulatedInventory
from gpuspawner.ledger.store import Ledger
from tests.rig.hub import HubProcess
from tests.rig.processes import free_port

PROFILES: list[dict[str, Any]] = [
    {"name": "cpu", "title": "CPU only", "default": True},
    {"name": "share", "title": "Small share for ml101", "mode": "time-sliced", "memory": "4GiB",
     "groups": ["ml101"]},
    {"name": "mig-2g", "title": "A100 instance, 10 GB", "mode": "mig", "instance": "2g.10gb"},
    {"name": "whole", "title": "Whole H100", "mode": "whole", "models": ["H100"]},
]  # fmt: skip
DEVICES = [{"select": "2080 Ti", "modes": ["time-sliced"]}]
CONFIG = """
c.JupyterHub.spawner_class = "simple"
c.JupyterHub.allow_named_servers = True
c.JupyterHub.load_groups = {{"ml101": {{"users": ["ada", "ben"]}}}}
{more}
import gpuspawner
gpuspawner.configure(
    c, agent="external", service_port={port}, hub_id="lab", ledger_url={ledger!r},
    profiles={profiles!r}, devices={devices!r},
)
"""


@dataclass
class Desk:
    """A hub with its service, and the books as hub and agent would write them."""

    hub: HubProcess
    ledger: Ledger
    port: int
    inventory: SimulatedInventory
    config: str
    origins: dict[int, Origin] = field(default_factory=dict)

    @property
    def broker(self) -> Broker:
        return Broker(self.ledger, "agent")

    @property
    def policy(self) -> Policy:
        return parse_policy(PROFILES, DEVICES)

    @property
    def page_url(self) -> str:
        return f"{self.hub.url}services/gpu/"

    def observe(self, minutes_ago: float = 0) -> None:
        """Report as the host's agent."""
        at = datetime.now(UTC) - timedelta(minutes=minutes_ago)
        seen = self.inventory.look(at)
        with self.ledger.read() as books:
            leases = books.holding()
        self.broker.observe(seen, at, attribute(seen, self.origins, leases, {}))

    def work(self, lease: Lease, memory_mib: int, busy_percent: int | None = None) -> None:
        """Let a server use its slice, from the next report on."""
        pid = 4700 + lease.lease_id
        self.origins[pid] = Origin(pid=pid, started=1, container_ids=(f"run-{lease.lease_id}",))
        busy = {} if busy_percent is None else {"busy_percent": busy_percent}
        self.inventory.run(pid, lease.slices[0].uuid, memory_mib=memory_mib, **busy)

    def grant(self, user: str, profile: str, server: str = "", minutes_ago: float = 30) -> Lease:
        """Let a server run with a slice."""
        self.observe(minutes_ago)  # shares are handed out on fresh readings only
        at = datetime.now(UTC) - timedelta(minutes=minutes_ago)
        chosen = next(item for item in self.policy.profiles if item.name == profile)
        key = ServerKey(hub_id="lab", user=user, server=server)
        lease = self.broker.request(Claim(key=key, profile=chosen), at)
        self.broker.bind(lease, f"run-{lease.lease_id}", at)
        self.broker.run(lease, at, at)
        return lease

    def end(self, lease: Lease, code: Code, **values: Any) -> None:
        """Let a server end."""
        now = datetime.now(UTC)
        evidence = Evidence(source=Source.ENGINE, finished_at=now - timedelta(minutes=3))
        self.broker.end(lease.lease_id, reason(code, **values), evidence, now)


@pytest.fixture
def make_desk(make_hub: Callable[..., HubProcess], tmp_path: Path):
    """Make a hub with its managed service; ``empty`` leaves the ledger to the service."""
    ledgers = []

    def make(more: str = "", *, empty: bool = False, **settings: Any) -> Desk:
        url = f"sqlite:///{tmp_path}/ledger.sqlite"
        ledger = Ledger(url)
        ledgers.append(ledger)
        port = free_port()
        config = CONFIG.format(port=port, ledger=url, profiles=PROFILES, devices=DEVICES, more=more)
        hub = make_hub(config, **settings)
        inventory = SimulatedInventory(HostId("gpu1"), "mixed-lab")
        desk = Desk(hub, ledger, port, inventory, config)
        if not empty:
            desk.broker.publish(desk.policy, "lab", datetime.now(UTC))
            desk.observe(minutes_ago=60)
        return desk

    yield make
    for ledger in ledgers:
        ledger.close()


def busy_lab(desk: Desk) -> None:
    """A lab at work: shares of one course, an instance, a cordon, a lost GPU, ends and refusals."""
    uuids = [device.uuid for device in desk.inventory.look(datetime.now(UTC)).devices]
    desk.work(desk.grant("ada", "share", minutes_ago=45), 2560, 64)
    desk.work(desk.grant("ben", "share", minutes_ago=40), 1152, 8)
    desk.work(desk.grant("ada", "mig-2g", "thesis", minutes_ago=125), 7680)
    desk.grant("cho", "mig-2g", minutes_ago=20)
    ended = desk.grant("ada", "whole", "training", minutes_ago=90)
    desk.end(ended, Code.EXITED, exit_code=137)
    desk.grant("cho", "whole", "big", minutes_ago=10)
    with pytest.raises(RefusedError):
        desk.grant("ada", "whole", "training", minutes_ago=5)
    desk.broker.cordon(uuids[1], "new cooler on Friday", "user:admin", datetime.now(UTC))
    desk.observe()
