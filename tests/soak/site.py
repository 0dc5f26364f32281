"""A real site for a soak: engine behind a proxy that makes trouble, hub, agent, books, people."""

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from gpuspawner.domain.leases import Lease
from gpuspawner.ledger.store import Ledger
from tests.doubles.fault_proxy import FaultProxy
from tests.e2e.lab import DEVICES, PROFILES, SPAWNER
from tests.rig import images
from tests.rig.engine import OwnedEngine
from tests.rig.hub import HubProcess, docker_config
from tests.rig.processes import is_alive

USERS: Final = ("ada", "ben", "cho", "user4", "user5", "user6")
NETWORK: Final = "soak"
# A call of the hub may take so long; faults hold calls for less.
CALL_SECONDS: Final = 20
START_SECONDS: Final = 40
USER_LABEL: Final = "org.gpuspawner.user"

_CONFIG: Final = """
{docker}
import sys
import jupyterhub.services.service
# The hub looks for services that ended every 30 s, and has no setting for it.
class Quick(jupyterhub.services.service._ServiceSpawner):
    poll_interval = 1
jupyterhub.services.service._ServiceSpawner = Quick
# Calls are given up sooner here than by default, and what may come of them is over sooner.
import datetime
import gpuspawner.spawners.books
gpuspawner.spawners.books.LOOK_AGAIN_AFTER = datetime.timedelta(seconds=2 * {call_seconds})
c.DockerSpawner.client_kwargs = {{"base_url": {url!r}, "timeout": {call_seconds}}}
c.JupyterHub.load_groups = {{"ml101": {{"users": {users!r}}}}}
c.JupyterHub.tornado_settings = {{"slow_spawn_timeout": 0, "slow_stop_timeout": 0}}
c.JupyterHub.services = [{{"name": "gpu-agent", "command": [
    sys.executable, "-m", "gpuspawner", "agent", "--guard-seconds", "1",
    "--observe-seconds", "1", "--reconcile-seconds", "3"]}}]
c.Spawner.start_timeout = {start_seconds}
c.Spawner.http_timeout = 30
c.Spawner.poll_interval = 3
import gpuspawner
gpuspawner.configure(
    c, service="external", agent="managed", simulate="mixed-lab", ledger_url={ledger_url!r},
    profiles={profiles!r}, devices={devices!r},
)
"""


@dataclass
class Site:
    """What a soak holds in its hands."""

    engine: OwnedEngine
    proxy: FaultProxy
    hub: HubProcess
    ledger: Ledger
    ledger_path: Path
    _client: Any = field(default=None, init=False)

    def client(self) -> Any:
        """Return a client of the engine, past the proxy."""
        if self._client is None:
            self._client = self.engine.client()
        return self._client

    def containers(self) -> list[dict[str, Any]]:
        """Return all containers as inspected."""
        found = []
        for each in self.client().containers(all=True):
            with contextlib.suppress(Exception):  # it went meanwhile
                found.append(self.client().inspect_container(each["Id"]))
        return found

    def living(self) -> list[Lease]:
        """Return the living leases."""
        with self.ledger.read() as books:
            return books.living()

    def servers(self) -> dict[str, dict[str, Any]]:
        """Return the default servers that the hub knows, by user.

        Raises:
            OSError: it does not answer.
        """
        answer = self.hub.api("GET", "/users")
        if answer.status != 200:
            raise OSError(f"the hub answers {answer.status}")
        return {
            each["name"]: each["servers"][""]
            for each in answer.body
            if "" in (each.get("servers") or {})
        }

    def agents(self) -> list[psutil.Process]:
        """Return the living agents of this site."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if "agent" not in process.cmdline() or "gpuspawner" not in process.cmdline():
                    continue
                told = process.environ().get("GPUSPAWNER_LEDGER_URL", "")
                if told.endswith(str(self.ledger_path)) and is_alive(process):
                    found.append(process)
        return found

    def handles(self) -> dict[str, int]:
        """Return how many files hub and agent have open."""
        counts = {"hub": psutil.Process(self.hub.pid).num_fds()}
        for agent in self.agents():
            counts["agent"] = agent.num_fds()
        return counts

    @contextmanager
    def write_lock(self) -> Iterator[None]:
        """Hold the books' write lock for the time of a block."""
        connection = sqlite3.connect(self.ledger_path, isolation_level=None, timeout=10)
        with contextlib.closing(connection):
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            finally:
                connection.execute("ROLLBACK")


@contextmanager
def open_site() -> Iterator[Site]:
    """Start everything; end it, and leave nothing behind."""
    folder = Path(tempfile.mkdtemp(prefix="gpuspawner-soak-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        engine = stack.enter_context(OwnedEngine(seed=images.seed()))
        proxy = stack.enter_context(FaultProxy(engine.url))
        gateway = engine.network(NETWORK)
        path = folder / "ledger.sqlite"
        config = _CONFIG.format(
            docker=docker_config(engine, NETWORK, images.names().stub, spawner=SPAWNER),
            url=proxy.url, call_seconds=CALL_SECONDS, start_seconds=START_SECONDS,
            users=list(USERS), ledger_url=f"sqlite:///{path}", profiles=PROFILES, devices=DEVICES,
        )  # fmt: skip
        hub = HubProcess(config, folder / "hub", hub_ip=gateway)
        stack.callback(hub.close)
        hub.start()
        ledger = Ledger(f"sqlite:///{path}")
        stack.callback(ledger.close)
        for user in USERS:
            hub.add_user(user)
        yield Site(engine=engine, proxy=proxy, hub=hub, ledger=ledger, ledger_path=path)


def profile_names() -> list[str]:
    """Return what people choose from, what is rare less often."""
    return [*(each["name"] for each in PROFILES), "share", "share", "mig-2g", "mig-2g"]
