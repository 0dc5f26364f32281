"""Spawn and stop against plain DockerSpawner: one engine, one image, turn by turn in one run."""

import asyncio
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

from bench.report import Row
from gpuspawner.broker.broker import Broker
from gpuspawner.gpus.simulated import SimulatedInventory
from gpuspawner.ledger.store import Ledger
from tests.rig import images
from tests.rig.engine import OwnedEngine
from tests.rig.hub import HubProcess, docker_config

OURS = "gpuspawner.spawners.docker.GPUDockerSpawner"
STUDENTS = 20


@dataclass
class Site:
    """One hub under measurement, and what its users ask for."""

    hub: HubProcess
    options: dict[str, str]

    async def start(self, users: list[str]) -> "Took":
        """Start a server for each at once, and wait until all are ready."""
        began = Took.begin()
        answers = await asyncio.gather(
            *(self.hub.start_server_async(user, options=self.options) for user in users)
        )
        assert all(answer.status in (201, 202) for answer in answers), answers
        for user in users:
            await asyncio.to_thread(self.hub.wait_server, user, ready=True, timeout=300)
        return began.until_now()

    async def stop(self, users: list[str]) -> "Took":
        """Stop them all at once, and wait until all are stopped."""
        began = Took.begin()
        await asyncio.gather(
            *(self.hub.api_async("DELETE", f"/users/{user}/server") for user in users)
        )
        for user in users:
            await asyncio.to_thread(self.hub.wait_server, user, ready=False, timeout=300)
        return began.until_now()


@dataclass(frozen=True)
class Took:
    """How long something took, and how much of the machine's processors it kept busy (0 to 1)."""

    seconds: float
    busy: float

    @classmethod
    def begin(cls) -> "Took":
        """Look at the clocks."""
        return cls(time.perf_counter(), _worked())

    def until_now(self) -> "Took":
        """Return what it took since."""
        seconds = time.perf_counter() - self.seconds
        worked = _worked() - self.busy
        return Took(seconds, worked / (seconds * (os.cpu_count() or 1)))


def _worked() -> float:
    """Return the processor seconds of the whole machine, whoever used them."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def run(rounds_alone: int = 8, rounds_together: int = 2, *, stub: bool = False) -> list[Row]:
    """Measure both, in turn, and return the rows of DESIGN's table."""
    with _sites(stub=stub) as (plain, ours):
        return asyncio.run(_measure(plain, ours, rounds_alone, rounds_together))


async def _measure(plain: Site, ours: Site, alone: int, together: int) -> list[Row]:
    users = [f"student{n}" for n in range(STUDENTS)]
    for site in (plain, ours):
        for user in users:
            await asyncio.to_thread(site.hub.add_user, user)
        await site.start(users[:1])  # not counted: first use of caches
        await site.stop(users[:1])
    one = await _turns(plain, ours, users[:1], alone)
    many = await _turns(plain, ours, users, together)
    return [
        _row("spawn to ready, one user", one[0], 1.05),
        _row("stop, one user", one[1], None),
        _row(f"{STUDENTS} users start at once", many[0], 0.9),
        _row(f"{STUDENTS} users stop at once", many[1], 0.4),
    ]


Pairs = list[tuple[Took, Took]]


async def _turns(plain: Site, ours: Site, users: list[str], rounds: int) -> tuple[Pairs, Pairs]:
    """Take turns, the first one changing, so that the machine's drift hits both alike."""
    starts: Pairs = []
    stops: Pairs = []
    for at in range(rounds):
        took: dict[int, tuple[Took, Took]] = {}
        for site in (plain, ours) if at % 2 == 0 else (ours, plain):
            took[id(site)] = (await site.start(users), await site.stop(users))
        starts.append((took[id(plain)][0], took[id(ours)][0]))
        stops.append((took[id(plain)][1], took[id(ours)][1]))
    return starts, stops


def _row(what: str, pairs: Pairs, bound: float | None) -> Row:
    plain = statistics.median(pair[0].seconds for pair in pairs)
    ours = statistics.median(pair[1].seconds for pair in pairs)
    ratio = statistics.median(pair[1].seconds / pair[0].seconds for pair in pairs)
    busy = [statistics.median(pair[at].busy for pair in pairs) for at in (0, 1)]
    return Row(
        what=what,
        measured=f"{ratio:.2f}x",
        bound="" if bound is None else f"<= {bound}x",
        holds=None if bound is None else ratio <= bound,
        note=f"plain DockerSpawner {plain:.2f} s (processors {busy[0]:.0%} busy), "
        f"ours {ours:.2f} s ({busy[1]:.0%}), {len(pairs)} pairs",
    )


@contextmanager
def _sites(*, stub: bool) -> Iterator[tuple[Site, Site]]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        engine = stack.enter_context(OwnedEngine(seed=images.seed()))
        image = images.names().stub if stub else images.names().notebook
        gateway = engine.network("bench")
        # Twenty whole GPUs would be three of these labs; shares of eight cards hold them all.
        url = f"sqlite:///{folder}/ledger.sqlite"
        _fill(url)
        configs = {
            "plain": docker_config(engine, "bench", image),
            "ours": docker_config(engine, "bench", image, spawner=OURS) + _our_config(url),
        }
        hubs = {}
        for name, config in configs.items():
            limits = (
                "c.JupyterHub.concurrent_spawn_limit = 0\nc.Spawner.start_timeout = 300\n"
                "c.Spawner.http_timeout = 300\nc.JupyterHub.log_level = 'WARN'\n"
            )
            hub = HubProcess(limits + config, folder / name, hub_ip=gateway)
            stack.callback(hub.close)
            hub.start()
            hubs[name] = hub
        yield Site(hubs["plain"], {}), Site(hubs["ours"], {"profile": "share"})


def _our_config(url: str) -> str:
    profile = {"name": "share", "title": "Share", "mode": "time-sliced", "memory": "20GiB",
               "groups": ["ml101"]}  # fmt: skip
    users = [f"student{n}" for n in range(STUDENTS)]
    return f"""
c.JupyterHub.load_groups = {{"ml101": {{"users": {users!r}}}}}
import gpuspawner
gpuspawner.configure(
    c, service="external", agent="managed", simulate="dgx-h100", ledger_url={url!r},
    profiles=[{profile!r}], devices=[{{"modes": ["time-sliced"]}}],
)
"""


def _fill(url: str) -> None:
    import socket

    now = datetime.now(UTC)
    ledger = Ledger(url)
    inventory = SimulatedInventory(socket.gethostname(), "dgx-h100")
    Broker(ledger, "agent").observe(inventory.look(now), now)
    inventory.close()
    ledger.close()
