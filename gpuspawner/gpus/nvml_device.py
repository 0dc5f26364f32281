"""How one GPU is read through NVML: each reading for itself, so that one failure stays one.

The binding arrives as an argument: only `gpuspawner.gpus.nvml` imports it. Units: NVML gives
bytes and milliwatts, we keep MiB and watts (NVML header).
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from gpuspawner.domain.devices import Device, DeviceUUID, Instance, Load, Unavailable
from gpuspawner.domain.units import MIB
from gpuspawner.gpus import health
from gpuspawner.gpus.nvml_calls import (
    GPU_IS_LOST,
    INVALID_ARGUMENT,
    NO_ACCESS,
    NOT_FOUND,
    NOT_SUPPORTED,
    OLDER_DRIVER,
    RESET_REQUIRED,
    UNKNOWN,
    Calls,
)
from gpuspawner.gpus.nvml_gpm import InstanceActivity
from gpuspawner.gpus.nvml_processes import read_device_processes, read_instance_processes

_HOLE = frozenset({NOT_FOUND, INVALID_ARGUMENT})
_NO_VALUE = frozenset({2**32 - 1, 2**64 - 1})  # "not available" as a number (case nvtop#432)
_MEMORY_V2 = 0x02000028  # nvmlMemory_v2: the struct's size and its version
_RECOVERY_ACTION, _RETIRED_PENDING = 230, 31  # NVML_FI_DEV_…
_VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


@dataclass(frozen=True, slots=True)
class Reading:
    """One device as read now.

    Attributes:
        answers: whether the GPU answered at all; else the device is as it was before.
        sampled_us: the newest sample of a process that was counted: the next look's ``sampled_us``.
        stale: whether a new NVML session may help.
    """

    device: Device
    sampled_us: int | None = None
    answers: bool = True
    stale: bool = False


def read_device(
    nvml: Any,
    handle: Any,
    before: Device,
    *,
    now: datetime,
    sampled_us: int | None,
    activity: InstanceActivity,
    slow: bool,
) -> Reading:
    """Read one GPU through its handle.

    This is the whole of what is asked of one GPU in one look, and it changes nothing but
    ``activity``: whoever must bound its time bounds this function, and drops what it returns too
    late.

    Args:
        nvml: the binding.
        handle: a full GPU's handle, from this NVML session.
        before: the device as last observed; its identity is kept, its slow readings carried on.
        now: aware time of this look.
        sampled_us: what the reading before had; ``None`` at the first one of this NVML session.
        activity: what is kept from reading to reading in this NVML session; this one's alone now.
        slow: also read what hardly ever changes (the name, the power limit).
    """
    calls, clock = Calls(nvml), _clock(now)
    mode, mode_code = calls.call("nvmlDeviceGetMigMode", handle)
    partitioned = _partitioned(mode, mode_code)
    total_mib, used_mib, reserved_mib = _memory(calls, handle)
    instances, migs, complete = _instances(calls, handle, before, partitioned, total_mib)
    load = Load(
        used_mib=used_mib,
        reserved_mib=reserved_mib,
        # Not supported with MIG on, and then no number may pass for one (gpu mechanics 1.12).
        busy_percent=None if partitioned else _busy(calls, handle),
        temperature_c=_temperature(calls, handle),
        power_w=_watts(calls.ask("nvmlDeviceGetPowerUsage", handle)),
        power_limit_w=_watts(calls.ask("nvmlDeviceGetEnforcedPowerLimit", handle))
        if slow
        else before.load.power_limit_w,
    )
    model = (calls.ask("nvmlDeviceGetName", handle) if slow else None) or before.model
    processes = None
    if not (partitioned or instances):  # with instances, each of them lists its own
        processes, sampled_us = read_device_processes(calls, handle, sampled_us, _us(now))
    sickness = _sickness(calls, handle)
    unreachable = _unreachable(calls)
    if unreachable is not None:
        return Reading(
            health.without_readings(before, unreachable), answers=False, stale=calls.stale
        )
    # At last, with calls of its own: whoever refuses these is no less well (gpu mechanics 1.12).
    busy = activity.read(nvml, handle, migs if complete else None, clock)
    device = replace(
        before,
        model=model,
        memory_mib=total_mib,
        partitioned=partitioned,
        instances=tuple(replace(item, busy_percent=busy.get(item.uuid)) for item in instances),
        load=load,
        processes=processes,
        unavailable=sickness if complete else sickness or _UNREAD_LAYOUT,
    )
    return Reading(device, sampled_us, stale=calls.stale)


_UNREAD_LAYOUT = health.unknown(
    "The GPU's instances could not be listed in full.", "a look that lists them"
)


def _unreachable(calls: Calls) -> Unavailable | None:
    """Judge a GPU that no longer answers: code 15 once, or nothing but refusals."""
    if GPU_IS_LOST in calls.codes:
        return health.lost(f"NVML code {GPU_IS_LOST}")
    if not calls.deaf:
        return None
    if RESET_REQUIRED in calls.codes:
        return health.reset_required()
    if UNKNOWN in calls.codes:
        return health.lost(f"NVML code {UNKNOWN}")
    return refused(min(calls.codes))


def refused(code: int) -> Unavailable:
    """Return the verdict on a GPU that exists and could not be asked, by NVML's code."""
    if code in NO_ACCESS:
        return health.unknown(
            f"The agent may not open this GPU (NVML code {code}).",
            "access of the agent to the GPU's device node",
        )
    return health.unknown(f"The GPU could not be asked (NVML code {code}).")


def _sickness(calls: Calls, handle: Any) -> Unavailable | None:
    rows = calls.ask("nvmlDeviceGetRemappedRows", handle)  # (corrected, uncorrected, pending, …)
    fields = _fields(calls, handle, _RECOVERY_ACTION, _RETIRED_PENDING)
    if RESET_REQUIRED in calls.codes:
        return health.reset_required()
    return health.from_counters(
        recovery_action=fields.get(_RECOVERY_ACTION),
        retirement_pending=fields.get(_RETIRED_PENDING),
        remap_pending=rows[2] if rows else None,
        remap_failure=rows[3] if rows else None,
    )


def _fields(calls: Calls, handle: Any, *ids: int) -> dict[int, int]:
    """Read fields in one call; each has its own return code (gpu mechanics 1.5)."""
    values = calls.ask("nvmlDeviceGetFieldValues", handle, list(ids)) or ()
    found = {}
    for item in values:
        if item.nvmlReturn == 0 and 0 <= item.valueType < len(_VALUE_MEMBERS):
            found[item.fieldId] = int(getattr(item.value, _VALUE_MEMBERS[item.valueType]))
        elif item.nvmlReturn in (GPU_IS_LOST, RESET_REQUIRED):
            calls.codes.add(item.nvmlReturn)
    return found


def _partitioned(mode: Any, code: int | None) -> bool | None:
    """Only NOT_SUPPORTED means that a GPU cannot be partitioned (gpu mechanics 1.12)."""
    if mode is None:
        return False if code == NOT_SUPPORTED else None
    return bool(mode[0])  # the current mode; the pending one comes with the next reset


def _memory(calls: Calls, handle: Any) -> tuple[int | None, int | None, int | None]:
    """Return total, used and reserved memory in MiB.

    Version 2 keeps the driver's own reserve out of ``used``; version 1 counts it in, and is only
    for drivers that lack the other (gpu mechanics 1.4).
    """
    info, code = calls.call("nvmlDeviceGetMemoryInfo", handle, _MEMORY_V2)
    reserved_mib = None if info is None else _mib(info.reserved)
    if code in OLDER_DRIVER:
        info = calls.ask("nvmlDeviceGetMemoryInfo", handle)
    if info is None:
        return None, None, None
    return _mib(info.total) or None, _mib(info.used), reserved_mib


def _busy(calls: Calls, handle: Any) -> int | None:
    rates = calls.ask("nvmlDeviceGetUtilizationRates", handle)
    return rates.gpu if rates is not None and 0 <= rates.gpu <= 100 else None


def _temperature(calls: Calls, handle: Any) -> int | None:
    """Return degrees Celsius, by the newer call first: the older one goes with CUDA 14."""
    celsius, code = calls.call("nvmlDeviceGetTemperatureV", handle, 0)  # 0: the GPU's own sensor
    if code in OLDER_DRIVER or code == NOT_SUPPORTED:
        celsius = calls.ask("nvmlDeviceGetTemperature", handle, 0)
    return None if celsius in _NO_VALUE else celsius


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None or milliwatts in _NO_VALUE else milliwatts / 1000


def _clock(now: datetime) -> Callable[[], datetime]:
    """Return a clock that shows ``now`` at present and goes on, however long a call may hang."""
    started = time.monotonic()
    return lambda: now + timedelta(seconds=time.monotonic() - started)


def _us(now: datetime) -> int:
    return int(now.timestamp() * 1_000_000)


def _mib(size: int) -> int | None:
    return None if size in _NO_VALUE else size // MIB


def _instances(
    calls: Calls, handle: Any, before: Device, partitioned: bool | None, total_mib: int | None
) -> tuple[tuple[Instance, ...], Mapping[DeviceUUID, Any], bool]:
    """List a GPU's instances, their handles, and whether the list is whole.

    Handles are asked for anew each time, because a destroyed instance's handle may serve another
    one later; holes are passed over, never taken for the end (gpu mechanics 1.12). What could
    not be read stays as last known: unknown is not gone.
    """
    if partitioned is False:
        return (), {}, True
    slots, code = calls.call("nvmlDeviceGetMaxMigDeviceCount", handle)
    complete = code is None or (partitioned is None and code == NOT_SUPPORTED)
    known = {instance.uuid: instance for instance in before.instances}
    found: dict[DeviceUUID, Instance] = {}
    migs: dict[DeviceUUID, Any] = {}
    for slot in range(slots or 0):
        mig, code = calls.call("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot)
        uuid = None
        if code is None:  # the instance may be destroyed between the two calls: a hole as well
            uuid, code = calls.call("nvmlDeviceGetUUID", mig)
        if uuid:
            migs[uuid] = mig
            found[uuid] = _instance(calls, mig, uuid, known.get(uuid), total_mib)
        elif code not in _HOLE:
            complete = False
    kept = {} if complete else known
    unread = [health.unread(old) for uuid, old in kept.items() if uuid not in found]
    return (*found.values(), *unread), migs, complete


def _instance(
    calls: Calls, mig: Any, uuid: DeviceUUID, known: Instance | None, total_mib: int | None
) -> Instance:
    """Read one instance. Profile, size and slices never change under one UUID."""
    memory_mib, used_mib, _ = _memory(calls, mig)
    processes = read_instance_processes(calls, mig)
    if known is not None and known.profile and known.memory_mib and known.compute_slices:
        return replace(known, used_mib=used_mib, processes=processes)
    size = calls.ask("nvmlDeviceGetAttributes_v2", mig)
    name = calls.ask("nvmlDeviceGetName", mig) or ""
    # "NVIDIA A100-SXM4-40GB MIG 2g.10gb"; names that we never saw are the driver's right.
    profile = name.rpartition(" MIG ")[2].strip() if " MIG " in name else ""
    return Instance(
        uuid=uuid,
        profile=profile or _profile_by_size(size, total_mib),
        memory_mib=memory_mib or (size and int(size.memorySizeMB)) or None,
        used_mib=used_mib,
        compute_slices=(size and size.computeInstanceSliceCount) or None,
        processes=processes,
    )


def _profile_by_size(size: Any, total_mib: int | None) -> str:
    """Name an instance as NVIDIA's tools do: eighths of the whole GPU's memory, rounded up.

    An empty name is an unknown one. Source of the rule: go-nvlib, ``getMigMemorySizeGB``.
    """
    if size is None or not size.memorySizeMB or not total_mib:
        return ""
    eighths = math.ceil(8 * size.memorySizeMB / total_mib)
    gigabytes = int(eighths / 8 * math.ceil(total_mib / 1024) + 0.5)
    whole, part = int(size.gpuInstanceSliceCount), int(size.computeInstanceSliceCount)
    return f"{f'{part}c.' if part != whole else ''}{whole}g.{gigabytes}gb"
