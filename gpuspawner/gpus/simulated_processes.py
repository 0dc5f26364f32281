"""What runs on simulated GPUs: entries of the state file, their rules, and what they add up to.

An entry is as real as its PID: nobody looks whether such a process exists, and the entry stays
until it is taken away.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from gpuspawner.domain.devices import DeviceUUID, ProcessUse
from gpuspawner.gpus.simulated_sentences import came, in_range, known_keys, refuse

_MOST_PID = 2**31 - 1  # the kernel's numbers are 32 bit with a sign, whatever its setting allows


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedProcess:
    """One process on one GPU or instance, by its keys in the state file.

    Attributes:
        pid: the host's number for it; the same one may run on several GPUs or instances.
        uuid: of a GPU that is not partitioned, or of an instance.
        memory_mib: what it uses, in MiB; ``None`` is unknown.
        busy_percent: share of time in which its kernels ran, 0 to 100; ``None`` is unknown, and
            on an instance always.
        mps: whether it is a client of MPS.
    """

    pid: int
    uuid: DeviceUUID
    memory_mib: int | None
    busy_percent: int | None
    mps: bool = False


_KEYS = tuple(item.name for item in fields(SimulatedProcess))


def parse(entries: Any, gpus: Iterable[DeviceUUID]) -> tuple[SimulatedProcess, ...]:
    """Read the list of a state file; whether the numbers are possible is not asked here.

    Args:
        entries: what stands at ``processes``.
        gpus: UUIDs of the lab's GPUs; on each other one it is unknown how busy a process is.

    Raises:
        ValueError: one sentence that says what is wrong in which entry.
    """
    if not isinstance(entries, list):
        refuse(f"'processes' must be a list with one object for each process, not {came(entries)}")
    known = frozenset(gpus)
    return tuple(
        _parse_entry(f"'processes', entry {n}", e, known) for n, e in enumerate(entries, 1)
    )


def _parse_entry(at: str, entry: Any, gpus: frozenset[DeviceUUID]) -> SimulatedProcess:
    if not isinstance(entry, dict):
        refuse(f"{at}: must be an object, not {came(entry)}")
    known_keys(at, entry, _KEYS)
    in_range(at, "pid", entry.get("pid"), _MOST_PID, least=1)
    if not isinstance(entry.get("uuid"), str):
        refuse(f"{at}: 'uuid' must name a GPU or an instance, not {came(entry.get('uuid'))}")
    if "memory_mib" not in entry:
        refuse(f"{at}: 'memory_mib' is missing; null is for an unknown reading")
    mps = entry.get("mps", False)
    if not isinstance(mps, bool):
        refuse(f"{at}: 'mps' must be true or false, not {came(mps)}")
    uuid = DeviceUUID(entry["uuid"])
    return SimulatedProcess(
        pid=entry["pid"],
        uuid=uuid,
        memory_mib=entry["memory_mib"],
        busy_percent=entry.get("busy_percent", idle(uuid, gpus)),
        mps=mps,
    )


def idle(uuid: DeviceUUID, gpus: Iterable[DeviceUUID]) -> int | None:
    """Return how busy a process is of which nobody said it: of instances no hardware tells it."""
    return 0 if uuid in gpus else None


def spell(processes: Iterable[SimulatedProcess]) -> list[dict[str, Any]]:
    """Return the list for a state file."""
    return [asdict(process) for process in processes]


def check(
    processes: Sequence[SimulatedProcess],
    sizes: Mapping[DeviceUUID, int],
    gpus: Iterable[DeviceUUID],
) -> None:
    """Refuse what no hardware can be.

    Args:
        processes: all of a lab.
        sizes: the memory of each GPU or instance that work can run on, in MiB.
        gpus: UUIDs of the lab's GPUs.

    Raises:
        ValueError: unknown UUIDs, one process twice at one place, or more than there is room for.
    """
    known = frozenset(gpus)
    seen: set[tuple[int, DeviceUUID]] = set()
    for item in processes:
        if item.uuid not in sizes:
            if item.uuid in known:
                refuse(f"{item.uuid} is partitioned: processes run on its instances")
            refuse(f"there is no GPU or instance {item.uuid!r} for process {item.pid} to run on")
        at = f"{item.uuid}, process {item.pid}"
        if (item.pid, item.uuid) in seen:
            refuse(f"{at}: must be listed once, and is listed again")
        seen.add((item.pid, item.uuid))
        if item.busy_percent is not None and item.uuid not in known:
            refuse(f"{at}: no hardware tells how busy a process on an instance is")
        size = sizes[item.uuid]
        in_range(at, "memory_mib", item.memory_mib, size, may_be_unknown=True)
        in_range(at, "busy_percent", item.busy_percent, 100, may_be_unknown=True)
    for uuid, known_mib in _known_memory(processes).items():
        if known_mib > sizes[uuid]:
            refuse(
                f"{uuid}: the 'memory_mib' of its processes must be {sizes[uuid]} together at most,"
                f" not {known_mib}"
            )


def on(uuid: DeviceUUID, processes: Iterable[SimulatedProcess]) -> tuple[ProcessUse, ...]:
    """Return what runs on one GPU or instance, in the order of the PIDs, as the driver lists it."""
    return tuple(sorted(_uses(uuid, processes), key=lambda use: use.pid))


def _uses(uuid: DeviceUUID, processes: Iterable[SimulatedProcess]) -> Iterator[ProcessUse]:
    for item in processes:
        if item.uuid == uuid:
            yield ProcessUse(
                pid=item.pid,
                memory_mib=item.memory_mib,
                busy_percent=item.busy_percent,
                mps_client=item.mps,
            )


def _known_memory(processes: Iterable[SimulatedProcess]) -> dict[DeviceUUID, int]:
    """Return the sum on each GPU or instance, in MiB, of what is known."""
    sums: dict[DeviceUUID, int] = {}
    for item in processes:
        sums[item.uuid] = sums.get(item.uuid, 0) + (item.memory_mib or 0)
    return sums
