"""What an attributed sample costs, against a snapshot of nvitop on the same stand-in for NVML.

Each runs in a process of its own and counts its own processor time. The stand-in plays 8 GPUs with
500 processes, which are real ones of this machine, so that both ask the kernel about them. Reading
its state file costs both the same for each call.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from bench.report import Row
from gpuspawner.agent.sampler import Sampler
from gpuspawner.broker.broker import Broker
from gpuspawner.domain.devices import HostId
from gpuspawner.gpus.nvml import NVMLInventory
from gpuspawner.gpus.origins import Origins
from gpuspawner.ledger.store import Ledger
from tests.doubles.nvml.double import MIB, build, gpu

GPUS, PROCESSES = 8, 500
ROUNDS = 30
BOUND = 0.2
ROOT = Path(__file__).parents[1]


def run() -> list[Row]:
    """Measure both in turns; the lesser of three each counts."""
    with tempfile.TemporaryDirectory() as name, _sleepers(PROCESSES) as pids:
        folder = Path(name)
        build(folder)
        (folder / "state").write_text(_state(pids))
        spent: dict[str, list[float]] = {"ours": [], "nvitop": []}
        for _ in range(3):
            for who, each in spent.items():
                each.append(_measure(who, folder))
    ours, peer = (min(each) for each in spent.values())
    return [
        Row(
            what=f"attributed sample of {GPUS} GPUs with {PROCESSES} processes",
            measured=f"{ours / peer:.2f}x",
            bound=f"<= {BOUND}x",
            holds=ours / peer <= BOUND,
            note=f"processor time: {ours:.1f} ms, a snapshot of nvitop {peer:.1f} ms",
        )
    ]


def _state(pids: list[int]) -> str:
    lines: dict[str, object] = {"driver": "580.95.05"}
    for index in range(GPUS):
        mine = pids[index::GPUS]
        listed = ",".join(f"{pid}:{(100 + pid % 50) * MIB}" for pid in mine)
        now = time.time_ns() // 1000
        samples = ",".join(f"{pid}:{now + 10**6}:{pid % 100}" for pid in mine[::2])
        lines |= gpu(index, processes=listed, samples=samples, used=10_000 * MIB)
    return "".join(f"{key}={value}\n" for key, value in lines.items())


@contextmanager
def _sleepers(count: int) -> Iterator[list[int]]:
    """Run processes that only sleep; they end with the block."""
    pids: list[int] = []
    try:
        for _ in range(count):
            pid = os.fork()
            if pid == 0:
                signal.pause()
                os._exit(0)
            pids.append(pid)
        yield pids
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _measure(who: str, folder: Path) -> float:
    """Return milliseconds of processor time for one sample."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.samples", who, str(folder)],
        cwd=ROOT, check=True, capture_output=True, text=True, timeout=300,
        env={**os.environ, "LD_LIBRARY_PATH": str(folder),
             "NVML_DOUBLE_STATE": str(folder / "state")},
    )  # fmt: skip
    return float(done.stdout)


def _ours(folder: Path) -> Callable[[], object]:
    broker = Broker(Ledger(f"sqlite:///{folder}/{os.getpid()}.sqlite"), "agent")
    sampler = Sampler(broker, NVMLInventory(HostId("bench")), Origins(Path("/proc")), dict)

    def sample() -> object:
        seen, found = sampler.take(datetime.now(UTC))
        assert len(seen.devices) == GPUS, seen.trouble
        assert sum(len(unit.foreign) for unit in found.units) == PROCESSES
        return found

    return sample


def _nvitop(_folder: Path) -> Callable[[], object]:
    import nvitop

    devices = nvitop.Device.all()
    assert len(devices) == GPUS

    def sample() -> object:
        found = nvitop.take_snapshots(devices)
        assert len(found.gpu_processes) == PROCESSES
        return found

    return sample


def main() -> None:
    """Measure one of the two in this process."""
    who, folder = sys.argv[1], Path(sys.argv[2])
    sample = {"ours": _ours, "nvitop": _nvitop}[who](folder)
    for _ in range(3):
        sample()
    begun = time.process_time()
    for _ in range(ROUNDS):
        sample()
    print((time.process_time() - begun) / ROUNDS * 1000)


if __name__ == "__main__":
    main()
