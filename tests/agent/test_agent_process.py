"""``gpuspawner agent`` as a real process, on a simulated lab."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from gpuspawner.domain.devices import HostInventory
from gpuspawner.ledger.store import Ledger
from tests.rig.processes import is_alive, run_mark, wait_for

AGENT = [sys.executable, "-m", "gpuspawner", "agent", "--host-id", "lab", "--guard-seconds", "0.2"]
AGENT += ["--observe-seconds", "1"]
NO_ENGINE = {"DOCKER_HOST": "unix:///nowhere/docker.sock"}


class World:
    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.ledger = Ledger(f"sqlite:///{folder}/gpuspawner.sqlite")
        stack.callback(self.ledger.close)

    def environment(self) -> dict[str, str]:
        return {**os.environ, **run_mark(), **NO_ENGINE, "GPUSPAWNER_SIMULATE": "mixed-lab"}

    def start(self, *arguments: str, log: str = "agent.log") -> "subprocess.Popen[bytes]":
        with (self.folder / log).open("ab") as out:
            process = subprocess.Popen(
                [*AGENT, *arguments],
                cwd=self.folder, env=self.environment(), stdout=out, stderr=out,
            )  # fmt: skip
        self._stack.callback(process.wait, 20)
        self._stack.callback(process.kill)
        return process

    def said(self, log: str = "agent.log") -> str:
        return (self.folder / log).read_text()

    def host(self) -> HostInventory | None:
        if not (self.folder / "gpuspawner.sqlite").exists():
            return None
        with self.ledger.read() as books:
            return next(iter(books.hosts()), None)

    def wait_for_inventory(self, after: HostInventory | None = None) -> HostInventory:
        def look() -> HostInventory | None:
            host = self.host()
            fresh = host and (after is None or host.observed_at > after.observed_at)
            return host if fresh else None

        return wait_for("an inventory", look, timeout=60)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path, stack)


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_it_writes_what_is_there_until_it_is_told_to_end(
    world: World, sign: signal.Signals
) -> None:
    agent = world.start()
    first = world.wait_for_inventory()
    assert (first.host_id, first.simulated) == ("lab", True)
    assert {device.model for device in first.devices} >= {"NVIDIA H100 80GB HBM3"}
    world.wait_for_inventory(after=first)

    agent.send_signal(sign)

    assert agent.wait(20) == 0
    assert "Traceback" not in world.said()


def test_a_second_one_waits_and_takes_over(world: World) -> None:
    first = world.start()
    world.wait_for_inventory()
    second = world.start(log="second.log")
    wait_for("the second to wait", lambda: "another one holds" in world.said("second.log"))
    assert second.poll() is None

    first.kill()
    first.wait(20)

    last = world.host()
    world.wait_for_inventory(after=last)
    assert second.poll() is None
    second.terminate()
    assert second.wait(20) == 0


def test_one_that_waits_ends_when_told(world: World) -> None:
    first = world.start()
    world.wait_for_inventory()
    second = world.start(log="second.log")
    wait_for("the second to wait", lambda: "another one holds" in world.said("second.log"))
    second.terminate()
    assert second.wait(20) == 0
    assert first.poll() is None


@pytest.mark.parametrize("external", [False, True])
def test_it_ends_with_the_hub_that_started_it(world: World, external: bool) -> None:
    """A hub that is killed leaves its services behind (H1); a unit of the site's own goes on."""
    code = "import subprocess, sys; p = subprocess.Popen(sys.argv[1:]); print(p.pid, flush=True)"
    command = [*AGENT, *(["--external"] if external else [])]
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}; p.wait()", *command],
        cwd=world.folder, env=world.environment(), stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        agent = psutil.Process(int(parent.stdout.readline()))
        host = world.wait_for_inventory()
        parent.kill()
    try:
        if external:
            world.wait_for_inventory(after=world.wait_for_inventory(after=host))
            assert is_alive(agent)
        else:
            wait_for("the agent to end", lambda: not is_alive(agent), timeout=20)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            agent.kill()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--simulate", "no-such-lab"], "no-such-lab"),
        (["--ledger", "mysql://x/y"], "sqlite:///FILE"),
    ],
)
def test_a_wrong_argument_is_said(world: World, arguments: list[str], said: str) -> None:
    agent = world.start(*arguments)
    assert agent.wait(30) == 1
    (line,) = world.said().splitlines()
    assert line.startswith("gpuspawner agent: ")
    assert said in line


def test_it_finds_its_ledger_again(world: World, make_away: Callable[..., None]) -> None:
    agent = world.start()
    host = world.wait_for_inventory()
    make_away(True)
    wait_for("it to be told", lambda: "the ledger is away" in world.said(), timeout=60)
    assert agent.poll() is None
    make_away(False)
    wait_for("it to be back", lambda: "the ledger is back" in world.said(), timeout=60)
    world.wait_for_inventory(after=host)


@pytest.fixture
def make_away(world: World) -> Callable[[bool], None]:
    """Hold the write lock, as a backup program that hangs would."""
    import sqlite3

    database = sqlite3.connect(world.folder / "gpuspawner.sqlite", isolation_level=None, timeout=20)
    world._stack.callback(database.close)

    def make(away: bool) -> None:
        database.execute("BEGIN IMMEDIATE" if away else "ROLLBACK")

    return make
