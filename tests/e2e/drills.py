"""Parts of the kill point drills: a lab that listens, an agent of the test's own, and troubles."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from gpuspawner.domain.leases import Lease, State
from gpuspawner.engines.docker import labels
from gpuspawner.steps import NAMES
from tests.doubles.drill import FOLDER_VARIABLE, ROLE_VARIABLE, Drill
from tests.e2e.lab import Lab
from tests.rig.processes import is_alive, run_mark, wait_for

PRESET = "four-a100"
SHARED: list[dict[str, Any]] = [{"select": "*", "modes": ["time-sliced"]}]
QUICK_SERVICES = """
# The hub looks for services that ended every 30 s, and has no setting for it.
import jupyterhub.services.service
class Quick(jupyterhub.services.service._ServiceSpawner):
    poll_interval = 1
jupyterhub.services.service._ServiceSpawner = Quick
"""
CONFIG = """
import os
os.environ.update({hub!r})
c.JupyterHub.services = [{{"name": "gpu-agent", "environment": {agent!r}}}]
c.JupyterHub.tornado_settings = {{"slow_spawn_timeout": 0, "slow_stop_timeout": 0}}
c.Spawner.poll_interval = 3600  # so that only what the test asks for passes steps
"""
REPAIR_SECONDS = 60


def unique(names: Iterable[str]) -> list[str]:
    """Each name once, in the order of its first time."""
    return list(dict.fromkeys(names))


@dataclass
class DrillSite:
    """A lab with a drill, and a healthy user who must never notice anything."""

    lab: Lab
    drill: Drill
    _healthy: tuple[int, str, str] | None = None
    _users: int = 0

    def new_user(self) -> str:
        """A person who has not been here yet."""
        self._users += 1
        name = f"user{self._users}"
        self.lab.hub.add_user(name)
        return name

    def start_healthy(self) -> None:
        """Let ben's server run before everything."""
        self.lab.start("ben", profile="share")
        self._healthy = self._of_ben()

    def _of_ben(self) -> tuple[int, str, str]:
        container = self.lab.container("ben")
        return self.lab.last("ben").lease_id, container["Id"], container["State"]["StartedAt"]

    def ask(self, what: str, user: str) -> None:
        """Ask for a start or a stop, and wait for no answer: the hub may die before it gives one.

        A hub asks its spawner whether the server runs before it answers a DELETE.
        """

        def work() -> None:
            with contextlib.suppress(OSError, ValueError):
                if what == "start":
                    self.lab.hub.start_server(user, options={"profile": "share"})
                else:
                    self.lab.hub.stop_server(user)

        threading.Thread(target=work, daemon=True).start()

    def start_all(self, users: Sequence[str]) -> None:
        """Let each have a server: one that has it keeps it."""
        waiting = list(users)

        def look() -> bool:
            for user in list(waiting):
                model = self.lab.hub.server(user)
                if model is not None and model["ready"]:
                    waiting.remove(user)
                elif model is None or not model["pending"]:
                    self.lab.hub.start_server(user, options={"profile": "share"})
            return not waiting

        wait_for(f"servers of {users}", look, REPAIR_SECONDS, every=0.2)

    def stop_all(self, users: Sequence[str]) -> None:
        """Let nobody of these have a server."""
        waiting = list(users)

        def look() -> bool:
            for user in list(waiting):
                model = self.lab.hub.server(user)
                if model is None:
                    waiting.remove(user)
                elif not model["pending"]:
                    self.lab.hub.stop_server(user)
            return not waiting

        wait_for(f"no servers of {users}", look, REPAIR_SECONDS, every=0.2)

    def expect_running(self, users: Sequence[str]) -> None:
        """Each holds one lease whose number its one container carries.

        Of a start that was cut off after its container ran the books say "granted" until the time
        for it is over: until then the start is the hub's.
        """
        for user in users:
            (lease,) = [each for each in self.lab.living() if each.key.user == user]
            assert lease.state in (State.GRANTED, State.RUNNING)
            container = self.lab.container(user)
            assert container["State"]["Running"]
            assert container["Config"]["Labels"]["org.gpuspawner.fence"] == str(lease.fence)

    def expect_only_ben(self, *, but_unsure: bool = False) -> None:
        """Within the time for repairs nothing is left of anybody but the healthy user.

        With ``but_unsure`` leases may be left whose create got no answer: they stay held until no
        engine can carry it out any more.
        """

        def is_left(lease: Lease) -> bool:
            unsure = lease.state is State.ENDING and lease.look_again_at is not None
            return lease.key.user != "ben" and not (but_unsure and unsure)

        def is_clear() -> bool:
            leases = [x.lease_id for x in self.lab.living() if is_left(x)]
            return not leases and list(self.listed()) == [self._ben_container()]

        wait_for("nothing to be left", is_clear, REPAIR_SECONDS, every=0.2)
        self.check()

    def _ben_container(self) -> str:
        return "" if self._healthy is None else self._healthy[1]

    def listed(self) -> dict[str, str]:
        """Whose each container is, by its id; they come and go while one looks."""
        with contextlib.closing(self.lab.engine.client()) as client:
            found = client.containers(all=True)
        return {x["Id"]: (x["Labels"] or {}).get(labels.USER, "") for x in found}

    def check(self) -> None:
        """The promises hold, and the healthy user noticed nothing."""
        self.lab.check()
        assert self._of_ben() == self._healthy
        assert self.lab.last("ben").state is State.RUNNING

    def processes(self, role: str) -> list[psutil.Process]:
        """Living processes of a role that belong to this site."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                told = process.environ()
                mine = told.get(FOLDER_VARIABLE) == str(self.drill.folder)
                if mine and told.get(ROLE_VARIABLE) == role and is_alive(process):
                    found.append(process)
        return found

    def expect_one(self, role: str) -> psutil.Process:
        """Exactly one process of a role is alive, and stays the only one."""
        try:
            return wait_for(
                f"exactly one {role}",
                lambda: found[0] if len(found := self.processes(role)) == 1 else None,
                REPAIR_SECONDS,
            )
        except TimeoutError as error:
            found = self.processes(role)
            for process in found:
                process.send_signal(signal.SIGABRT)  # its log shows where its threads are
            raise TimeoutError(f"{error}; there are {found}") from None


def open_site(
    make_lab: Callable[..., Lab], folder: Path, *, agent: bool, config: str = "", **changes: Any
) -> DrillSite:
    """Make a lab whose hub, and agent if the hub runs one, listen to a drill."""
    drill = Drill(folder / "drill")
    users = ["ben", *(f"user{number}" for number in range(1, 300))]
    text = CONFIG.format(hub=drill.environment("hub"), agent=drill.environment("agent"))
    lab = make_lab(
        preset=PRESET, devices=SHARED, groups={"ml101": users}, agent=agent,
        config=QUICK_SERVICES + text + config, **changes,
    )  # fmt: skip
    lab.hub.add_user("ben")
    return DrillSite(lab, drill)


# --- an agent of the test's own ---------------------------------------------------------------


@dataclass
class OwnAgent:
    """The agent as the test's child, so that it is started again at once."""

    site: DrillSite
    folder: Path
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        """Start it, and return when it has compared and observed once."""
        self.folder.mkdir(exist_ok=True)
        before = self._observed()
        self.launch()
        wait_for("the agent to observe", lambda: self._observed() != before or None, REPAIR_SECONDS)

    def launch(self) -> None:
        """Start it and do not wait."""
        assert self.process is None
        with (self.folder / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gpuspawner", "agent", "--simulate", PRESET,
                 "--ledger", self.site.lab.ledger.url.render_as_string(hide_password=False),
                 "--guard-seconds", "0.6", "--observe-seconds", "1", "--reconcile-seconds", "0.6"],
                cwd=self.folder, stdout=log, stderr=log,
                env={**os.environ, **run_mark(), **self.site.drill.environment("agent"),
                     "DOCKER_HOST": self.site.lab.engine.url},
            )  # fmt: skip

    def _observed(self) -> Any:
        with self.site.lab.ledger.read() as books:
            return [host.observed_at for host in books.hosts()]

    def wait_killed(self) -> None:
        """Wait until it has killed itself."""
        assert self.process is not None
        try:
            status = self.process.wait(REPAIR_SECONDS)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the agent lives on:\n{self.log()}") from None
        assert status == -signal.SIGKILL, self.log()
        self.process = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let it see nothing of what happens in the block."""
        if self.process is not None:
            self.process.send_signal(signal.SIGSTOP)
        yield
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it if it runs."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def log(self) -> str:
        """The end of what it said."""
        return (self.folder / "agent.log").read_text()[-4000:]


@contextmanager
def own_agent(site: DrillSite, folder: Path) -> Iterator[OwnAgent]:
    """An agent that ends with the block; not started yet."""
    agent = OwnAgent(site, folder)
    try:
        yield agent
    finally:
        agent.kill()


def record(site: DrillSite) -> dict[str, list[str]]:
    """Let a person start and stop with nothing in the way; return the hub's steps of each."""
    user, found = site.new_user(), {}
    for what, work in (("start", site.start_all), ("stop", site.stop_all)):
        mark = site.drill.mark()
        work([user])
        found[what] = unique(site.drill.trace("hub", mark))
    assert set().union(*found.values()) <= NAMES
    return found


def may_stand(name: str) -> bool:
    """Whether others go on while a thread of the hub stands at this step."""
    return name.startswith("engine:") or name.startswith("ledger:read")


def every(found: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(what, name) for what, names in found.items() for name in names]
