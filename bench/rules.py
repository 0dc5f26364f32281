"""How fast the rules and the books are: placement in memory, and granting on SQLite on disk.

Times of `settle` are whole write transactions, as hub and agent wait for them.
"""

import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path

from gpuspawner.broker.broker import Broker
from gpuspawner.domain.devices import (
    Device,
    DeviceUUID,
    HostId,
    HostInventory,
    Instance,
    Load,
    Mode,
)
from gpuspawner.domain.leases import Claim, Evidence, Lease, ServerKey, Source, State
from gpuspawner.domain.placement import place
from gpuspawner.domain.policy import DeviceRule, Policy
from gpuspawner.domain.pool import Pool
from gpuspawner.domain.profiles import Profile
from gpuspawner.domain.reasons import Code, reason
from gpuspawner.domain.slices import Hold
from gpuspawner.ledger.store import Ledger

NOW = datetime(2026, 9, 1, 8, 0, tzinfo=UTC)
SLICES, LEASED, WAITING = 1000, 800, 200
PROCESSES, WRITERS = 2, 10
WHOLE = Profile(name="whole", title="Whole", mode=Mode.WHOLE)
MIG = Profile(name="mig", title="MIG", mode=Mode.INSTANCE, instance="1g.5gb")
SHARE = Profile(
    name="share", title="Share", mode=Mode.TIME_SLICED, memory_mib=4096, groups=("ml101",)
)  # fmt: skip
POLICY = Policy(
    profiles=(WHOLE, MIG, SHARE),
    rules=(DeviceRule(modes=frozenset({Mode.WHOLE, Mode.INSTANCE, Mode.TIME_SLICED})),),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table. ``bound_ms`` None: shown for comparison, nothing is promised."""

    what: str
    p50_ms: float
    p99_ms: float
    bound_ms: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the promise is kept."""
        return self.bound_ms is None or self.p99_ms < self.bound_ms


def run() -> list[Row]:
    """Measure everything."""
    with tempfile.TemporaryDirectory() as folder:
        return [
            *(placement(profile) for profile in (WHOLE, MIG, SHARE)),
            fsync(Path(folder)),
            settle_alone(Path(folder) / "alone.sqlite"),
            *settle_together(Path(folder) / "together.sqlite"),
        ]


def table(rows: list[Row]) -> str:
    """Write rows for people."""
    lines = [f"{'':58}{'p50 ms':>9}{'p99 ms':>9}{'bound':>9}"]
    for row in rows:
        bound = "" if row.bound_ms is None else f"< {row.bound_ms:g}"
        verdict = "" if row.holds else "  MISSED"
        lines.append(f"{row.what:58}{row.p50_ms:9.3f}{row.p99_ms:9.3f}{bound:>9}{verdict}")
    return "\n".join(lines)


def _row(what: str, seconds: list[float], bound_ms: float | None = None) -> Row:
    cuts = statistics.quantiles(seconds, n=100)
    return Row(what=what, p50_ms=cuts[49] * 1e3, p99_ms=cuts[98] * 1e3, bound_ms=bound_ms)


def lab(profile: Profile, slices: int = SLICES) -> HostInventory:
    """Make a host with room for that many grants of a profile."""
    per_device = {Mode.WHOLE: 1, Mode.INSTANCE: 7, Mode.TIME_SLICED: 4}[profile.mode or Mode.WHOLE]
    devices = []
    for number in range(-(-slices // per_device)):
        instances = [
            Instance(uuid=DeviceUUID(f"MIG-{number}-{at}"), profile="1g.5gb", memory_mib=4864)
            for at in range(min(7, slices - 7 * number) if profile is MIG else 0)
        ]
        devices.append(
            Device(
                uuid=DeviceUUID(f"GPU-{number:04}"), host_id=HostId("lab"), index=number,
                model="NVIDIA A100-SXM4-40GB", memory_mib=16384 + 512, load=Load(used_mib=0),
                partitioned=profile is MIG, instances=tuple(instances),
            )
        )  # fmt: skip
    return HostInventory(
        host_id=HostId("lab"), observed_at=NOW, devices=tuple(devices), simulated=True
    )  # fmt: skip


def placement(profile: Profile) -> Row:
    """Place the 801st to the 1,000th of 1,000 slices, with the view built once.

    Time on the processor: a machine that does something else meanwhile changes nothing.
    """
    host = lab(profile)
    full = Pool(POLICY, [host], now=NOW)
    holds = [_take(full, profile, number) for number in range(LEASED)]
    seconds: list[float] = []
    for _ in range(20):
        pool = Pool(POLICY, [host], holds=holds, now=NOW)
        for number in range(LEASED, SLICES):
            before = time.thread_time()
            slices = place(pool, profile)
            seconds.append(time.thread_time() - before)
            assert slices is not None
            pool.add(Hold(lease_id=number, slice=slices[0], group=profile.share_group))
    return _row(f"place one of {SLICES:,} slices, {LEASED} leased: {profile.mode}", seconds, 0.2)


def _take(pool: Pool, profile: Profile, number: int) -> Hold:
    slices = place(pool, profile)
    assert slices is not None
    hold = Hold(lease_id=number, slice=slices[0], group=profile.share_group)
    pool.add(hold)
    return hold


def fsync(folder: Path) -> Row:
    """Measure the disk itself: what any durable commit must wait for at least."""
    seconds = []
    with (folder / "fsync").open("wb", buffering=0) as file:
        for _ in range(500):
            file.write(b"x" * 4096)
            before = time.perf_counter()
            os.fsync(file.fileno())
            seconds.append(time.perf_counter() - before)
    return _row("fsync of 4 KiB on the same disk", seconds)


def _claim(number: int) -> Claim:
    key = ServerKey(hub_id="hub", user=f"student-{number}")
    return Claim(key=key, profile=WHOLE, may_wait=True)


@contextmanager
def full_site(file: Path) -> Iterator[Broker]:
    """Open books with 800 who run and 200 who wait."""
    ledger = Ledger(f"sqlite:///{file}")
    broker = Broker(ledger, "bench")
    broker.publish(POLICY, "hub", NOW)
    broker.observe(lab(WHOLE, LEASED), NOW)
    with ledger.write() as books:
        waiting = [books.add_lease(_claim(number), NOW) for number in range(LEASED + WAITING)]
        broker._settle(books, NOW, {})
        for number in waiting[:LEASED]:
            books.change_lease(number, State.GRANTED, State.RUNNING, running_at=NOW)
    try:
        yield broker
    finally:
        ledger.close()


def _turn(broker: Broker, lease: Lease, number: int) -> tuple[float, float]:
    """One ends, the first who waits is granted, and a new one comes to wait."""
    before = time.perf_counter()
    why = reason(Code.STOPPED)
    broker.end(lease.lease_id, why, Evidence(source=Source.ENGINE, finished_at=NOW), NOW)
    middle = time.perf_counter()
    broker.request(_claim(number), NOW)
    return middle - before, time.perf_counter() - middle


def settle_alone(file: Path, turns: int = 300) -> Row:
    """End one and grant one, by a single writer."""
    seconds = []
    with full_site(file) as broker:
        with broker.ledger.read() as books:
            running = books.living(states=frozenset({State.RUNNING}))
        for number, lease in enumerate(running[:turns]):
            seconds.append(_turn(broker, lease, 10_000 + number)[0])
    return _row(f"settle granting one, {WAITING} waiting, {LEASED} running", seconds, 20)


def settle_together(file: Path, turns: int = 30) -> list[Row]:
    """The same by 2 processes with 10 writers each, all at once.

    The first turn of a process is told apart: then its view of the pool is built and each statement
    compiled, once in its life of days. Among 300 turns it would be all of the highest 1 %.
    """
    with full_site(file) as broker:
        with broker.ledger.read() as books:
            running = [each.lease_id for each in books.living(states=frozenset({State.RUNNING}))]
        context = multiprocessing.get_context("spawn")
        parts = [running[at::PROCESSES][: WRITERS * turns + 1] for at in range(PROCESSES)]
        pipes, processes = [], []
        for at, part in enumerate(parts):
            ours, theirs = context.Pipe()
            process = context.Process(target=_write_in_threads, args=(theirs, file, at, part))
            process.start()
            pipes.append(ours)
            processes.append(process)
        first = [pipe.recv() for pipe in pipes]
        for pipe in pipes:
            pipe.send("go")
        seconds = [each for pipe in pipes for each in pipe.recv()]
        for process in processes:
            process.join()
    what = f"the same with {PROCESSES} processes of {WRITERS} writers"
    return [_row(what, seconds, 50), _row("the first turn of a process", first)]


def _write_in_threads(pipe: Connection, file: Path, process: int, numbers: list[int]) -> None:
    ledger = Ledger(f"sqlite:///{file}")
    broker = Broker(ledger, "bench")
    with ledger.read() as books:
        wanted = set(numbers)
        first, *leases = [each for each in books.living() if each.lease_id in wanted]
    pipe.send(_turn(broker, first, 100_000 * (process + 1) - 1)[0])
    pipe.recv()
    seconds: list[float] = []

    def write(thread: int) -> None:
        for at, lease in enumerate(leases[thread::WRITERS]):
            number = 100_000 * (process + 1) + 1000 * thread + at
            seconds.extend(_turn(broker, lease, number)[:1])

    work: Callable[[int], threading.Thread] = lambda at: threading.Thread(target=write, args=(at,))  # noqa: E731
    threads = [work(at) for at in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ledger.close()
    pipe.send(seconds)


if __name__ == "__main__":
    print(table(run()))
