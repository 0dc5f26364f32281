"""A managed process ends with its hub, also where the hub dies while it starts."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from gpuspawner.lifetime import HUB_PID_VARIABLE
from tests.rig.processes import is_alive, kill_all, run_mark, wait_for

# A hub that dies at once after it has started its agent, directly or by another program.
HUB = """
import os, signal, subprocess, sys
environment = {**os.environ, sys.argv[1]: str(os.getpid())}
child = subprocess.Popen(sys.argv[3:], env=environment, stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL)
print(child.pid, flush=True)
if sys.argv[2] == "dies":
    os.kill(os.getpid(), signal.SIGKILL)
signal.pause()
"""


def start(folder: Path, life: str, *before: str) -> "tuple[subprocess.Popen[str], psutil.Process]":
    agent = [sys.executable, "-m", "gpuspawner", "agent", "--simulate", "four-a100",
             "--ledger", f"sqlite:///{folder}/ledger.sqlite"]  # fmt: skip
    hub = subprocess.Popen(
        [sys.executable, "-c", HUB, HUB_PID_VARIABLE, life, *before, *agent], cwd=folder,
        env={**os.environ, **run_mark(), "DOCKER_HOST": "unix:///nowhere/docker.sock"},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert hub.stdout is not None
    with hub.stdout:
        return hub, psutil.Process(int(hub.stdout.readline()))


def test_a_hub_that_dies_while_its_agent_starts_leaves_no_agent(tmp_path: Path) -> None:
    hub, agent = start(tmp_path, "dies")
    try:
        hub.wait(20)
        wait_for("the agent to end", lambda: not is_alive(agent), timeout=30)
    finally:
        kill_all([agent])


def test_another_program_may_stand_between_hub_and_agent(tmp_path: Path) -> None:
    hub, program = start(tmp_path, "lives", "sh", "-c", '"$@"; true', "sh")
    try:
        wait_for("the books", (tmp_path / "ledger.sqlite").exists)
        assert is_alive(program)
    finally:
        kill_all([psutil.Process(hub.pid)])
        hub.wait()


def test_many_signals_at_once_end_it_too(tmp_path: Path) -> None:
    """A handler that sets an event hangs when a second signal interrupts it."""
    hub, agent = start(tmp_path, "lives")
    try:
        wait_for("the books", (tmp_path / "ledger.sqlite").exists)
        for _ in range(100_000):  # it stays a zombie of its hub: the number is nobody else's
            os.kill(agent.pid, signal.SIGTERM)
        wait_for("the agent to end", lambda: not is_alive(agent), timeout=20)
    finally:
        kill_all([psutil.Process(hub.pid)])
        hub.wait()
