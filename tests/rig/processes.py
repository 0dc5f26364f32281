"""Helpers for real processes: free ports, ends by process id, waiting with a deadline."""

import contextlib
import os
import random
import socket
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import psutil

_T = TypeVar("_T")

# In the environment of what the rig starts: which test run it belongs to.
_RUN_VARIABLE = "GPUSPAWNER_RIG_RUN"
_LANES = 4
# Servers that are processes are found by hub and name, whoever started them: test runs that go
# on side by side must not be the same hub.
HUB_ID = f"hub{os.getpid()}"
_given: set[int] = set()  # two ports of one hub must not be the same


def free_port(address: str = "127.0.0.1") -> int:
    """Return a port that nobody listens on.

    Below the range from which the kernel serves outgoing connections: between this answer and
    the listen nobody gets the port by chance. No port is given twice, and test runs that go on
    side by side draw from different ones.
    """
    lane = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _LANES
    while True:
        port = random.SystemRandom().randrange(20_000 + lane, 32_000, _LANES)
        if port in _given:
            continue
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind((address, port))
            _given.add(port)
            return port


def wait_for(
    what: str, look: Callable[[], _T | None], timeout: float = 30, every: float = 0.05
) -> _T:
    """Look until there is something to see, and return it; the deadline's error says what."""
    deadline = time.monotonic() + timeout
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout:g} s in vain for {what}; last seen: {seen!r}")
        time.sleep(every)


def descendants(pid: int) -> list[psutil.Process]:
    """Return the living processes below this one."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def is_alive(process: psutil.Process) -> bool:
    """Say whether it runs; one that only waits to be reaped does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill_all(processes: Iterable[psutil.Process]) -> None:
    """Kill these, with all below them, and return once none of them runs."""
    victims: set[psutil.Process] = set()
    for process in processes:
        if is_alive(process):
            victims |= {process, *descendants(process.pid)}
    for victim in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()
    wait_for("processes to end", lambda: not any(map(is_alive, victims)), timeout=15, every=0.01)


def run_mark() -> dict[str, str]:
    """Return the environment variable by which a later run knows what this one left behind."""
    me = psutil.Process()
    return {_RUN_VARIABLE: f"{me.pid} {me.create_time():.2f}"}


def end_orphans() -> None:
    """Kill what a test run started that was itself killed before it could clean up."""
    orphans = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            owner = process.environ().get(_RUN_VARIABLE)
            if owner and process.pid != os.getpid() and not _is_running(owner):
                orphans.append(process)
    kill_all(orphans)


def _is_running(owner: str) -> bool:
    pid, _, created = owner.partition(" ")
    try:
        return f"{psutil.Process(int(pid)).create_time():.2f}" == created
    except psutil.NoSuchProcess:
        return False
