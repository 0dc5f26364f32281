"""A hub's local spawners without the hub: real processes, a real ledger, a simulated lab."""

import os
import stat
import sys
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

from jupyterhub import orm

from gpuspawner.broker.broker import Broker
from gpuspawner.broker.invariants import broken_promises
from gpuspawner.domain.devices import HostId
from gpuspawner.engines.process.runtime import ProcessRuntime
from gpuspawner.gpus.factory import open_inventory
from gpuspawner.ledger.store import Ledger
from gpuspawner.spawners.local import GPULocalSpawner
from tests.rig.processes import HUB_ID

STUB = Path(__file__).parents[1] / "rig" / "stub" / "stub_server.py"
PROFILES = [
    {"name": "cpu", "title": "CPU only", "default": True},
    {"name": "whole", "title": "A whole GPU", "mode": "whole"},
    {"name": "slice", "title": "A slice", "mode": "mig", "instance": "2g.10gb"},
    {"name": "pair", "title": "Two GPUs", "mode": "whole", "count": 2},
]
WHOLE, CPU = {"profile": "whole"}, {"profile": "cpu"}


class Site:
    """Spawners of one hub, as one process of the hub after the other makes them."""

    def __init__(self, folder):
        self.url = f"sqlite:///{folder}/ledger.sqlite"
        self.ledger = Ledger(self.url)
        self.settings = {}
        self.made = []

    def observe(self, seen):
        Broker(self.ledger, "agent").observe(seen, datetime.now(UTC))

    def spawner(self, user="ada", name="", **values):
        prefix = f"/user/{user}/{name}/" if name else f"/user/{user}/"
        spawner = GPULocalSpawner(
            user=SimpleNamespace(
                name=user, settings=self.settings, url=f"/user/{user}/", escaped_name=user,
                orm_user=SimpleNamespace(groups=[]),
            ),
            hub=SimpleNamespace(
                public_host="", api_url="http://127.0.0.1:1/hub/api", base_url="/hub/"
            ),
            orm_spawner=SimpleNamespace(
                name=name, user_options={},
                server=orm.Server(
                    proto="http", ip="127.0.0.1", port=1, base_url=prefix, cookie_name="ada"
                ),
            ),
            profiles=PROFILES, ledger_url=self.url, hub_id=HUB_ID,
            **{"cmd": [sys.executable, str(STUB)], **values},
        )  # fmt: skip
        self.made.append(spawner)
        return spawner

    def restart(self):
        """Be a new hub process: nothing remembered but what is saved."""
        self.settings = {}

    @property
    def leases(self):
        with self.ledger.read() as books:
            return books.recent()

    def only_lease(self):
        (lease,) = self.leases
        return lease


@asynccontextmanager
async def open_site(folder):
    """A site with a simulated lab; nothing of it stays, and the promises hold."""
    site = Site(folder)
    site.observe(open_inventory(HostId("lab"), "mixed-lab", None).look(datetime.now(UTC)))
    try:
        yield site
    finally:
        sight = ProcessRuntime()
        for spawner in site.made:
            sight.end(lambda key=spawner.key: sight.family_of_server(key), 0)
            if spawner._processes._child is not None:
                spawner._processes._child.wait()
            spawner._site.broker.ledger.close()
            spawner._site.lanes.close()
            spawner._site._books.close()
        assert broken_promises(site.ledger) == []
        site.ledger.close()


async def start(spawner, options=CPU):
    spawner.clear_state()
    spawner.api_token = "a-secret-token"
    spawner.user_options = options
    return await spawner.start()


def inside(spawner):
    text = Path(f"/proc/{spawner.pid}/environ").read_bytes()
    return dict(os.fsdecode(pair).split("=", 1) for pair in text.split(b"\0") if pair)


def processes_of(spawner):
    return ProcessRuntime().family_of_server(spawner.key).members


def is_private(folder):
    return stat.S_IMODE(folder.stat().st_mode) == 0o700
