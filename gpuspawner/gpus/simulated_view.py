"""What a look at a simulated GPU shows: its state in the form in which NVML tells it."""

from collections.abc import Sequence

from gpuspawner.domain.devices import (
    Device,
    HostId,
    Instance,
    Load,
    ProcessUse,
    Unavailable,
)
from gpuspawner.gpus import health, simulated_processes
from gpuspawner.gpus.simulated_lab import DeviceState, SimulatedDevice, SimulatedInstance
from gpuspawner.gpus.simulated_state import Reading, State

_INSTANCE_RESERVE_MIB = 12  # what an empty instance shows as used


def observe(host_id: HostId, device: SimulatedDevice, lab_state: State) -> Device:
    """Return a simulated GPU as NVML would show it."""
    state = lab_state.devices[device.uuid]
    instances = tuple(_instance(item, lab_state) for item in device.instances(state))
    processes = simulated_processes.on(device.uuid, lab_state.processes)
    observed = Device(
        uuid=device.uuid,
        host_id=host_id,
        index=device.index,
        model=device.board.model,
        memory_mib=device.board.memory_mib,
        partitioned=state.partitioned,
        instances=instances,
        load=_load(device, lab_state, instances, processes),
        processes=None if state.partitioned else processes,
        unavailable=_verdict(state),
    )
    lost = observed.unavailable if state.lost else None
    return health.without_readings(observed, lost) if lost is not None else observed


def _verdict(state: DeviceState) -> Unavailable | None:
    if state.lost:
        return health.lost("simulated")
    return health.from_xid(state.xid) if state.xid is not None else None


def _instance(item: SimulatedInstance, lab_state: State) -> Instance:
    size = item.profile.memory_mib
    processes = simulated_processes.on(item.uuid, lab_state.processes)
    load = lab_state.loads.get(item.uuid, {})
    return Instance(
        uuid=item.uuid,
        profile=item.profile.name,
        memory_mib=size,
        used_mib=load.get("used_mib", _used_mib(_INSTANCE_RESERVE_MIB, processes, size)),
        compute_slices=item.profile.compute_slices,
        processes=processes,
    )


def _load(
    device: SimulatedDevice,
    lab_state: State,
    instances: Sequence[Instance],
    processes: Sequence[ProcessUse],
) -> Load:
    """Return plausible readings: a little different on each GPU, warmer with more work."""
    board, load = device.board, lab_state.loads.get(device.uuid, {})
    seed = int(device.uuid[-4:], 16)
    used_mib: Reading = load.get("used_mib", _used_mib(1 + seed % 8, processes, board.memory_mib))
    busy: Reading = load.get("busy_percent", _busy_percent(processes))
    if lab_state.devices[device.uuid].partitioned:
        # No utilisation with MIG on, memory is the sum (gpu mechanics 1.12).
        used_mib = _sum([item.used_mib for item in instances])
        busy = None
    work = (busy or 0) / 100
    return Load(
        used_mib=used_mib,
        # A full GPU may be said to be full; there is no more room then for a reserve.
        reserved_mib=min(board.reserved_mib, board.memory_mib - (used_mib or 0)),
        busy_percent=busy,
        temperature_c=29 + seed % 7 + round(40 * work),
        power_w=round(board.idle_w + seed % 5 + (0.9 * board.limit_w - board.idle_w) * work, 1),
        power_limit_w=board.limit_w,
    )


def _used_mib(empty_mib: int, processes: Sequence[ProcessUse], size_mib: int) -> Reading:
    """Return the memory in use, in MiB, where nobody set it: what an empty one shows and these."""
    together = _sum([process.memory_mib for process in processes])
    return None if together is None else min(empty_mib + together, size_mib)


def _busy_percent(processes: Sequence[ProcessUse]) -> Reading:
    """Return the highest: a GPU has a kernel at least as often as each process; 0 with none."""
    readings = [process.busy_percent for process in processes]
    return None if None in readings else max((each or 0 for each in readings), default=0)


def _sum(readings: Sequence[Reading]) -> Reading:
    """Add up; with one that is unknown the sum is."""
    return None if None in readings else sum(each or 0 for each in readings)
