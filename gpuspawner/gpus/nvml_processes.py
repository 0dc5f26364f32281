"""What runs on one GPU or instance, by process, as NVML lists and samples it.

Nothing here raises, and nothing unknown passes for nothing: a list that could not be had is
``None`` and never empty, a process that could not be sampled is busy ``None`` and never 0. The
PIDs are the host's (gpu mechanics 2.1).
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from gpuspawner.domain.devices import ProcessUse
from gpuspawner.domain.units import MIB
from gpuspawner.gpus.nvml_calls import (
    FUNCTION_NOT_FOUND,
    INSUFFICIENT_SIZE,
    NO_ANSWER,
    NOT_FOUND,
    NOT_SUPPORTED,
    Calls,
)

FIRST_SAMPLES_US = 1_000_000
"""How far the first look at a GPU goes back for samples, in microseconds. Asked without a limit,
the driver returns all that its ring holds, however old (gpu mechanics 1.7)."""

_AHEAD_US = 60_000_000  # a sample from further ahead than this is no sample
_PID_MAX = 2**22  # the highest that Linux gives (proc_sys_kernel(5), pid_max)
_NO_SUCH_LIST = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND})
_NOTHING_RAN = frozenset({NOT_FOUND, NO_ANSWER})
_NO_VALUE = 2**64 - 1

Memory = dict[int, int | None]
"""Processes by PID with their memory in MiB, ``None`` where the driver does not tell it."""


def read_instance_processes(calls: Calls, handle: Any) -> tuple[ProcessUse, ...] | None:
    """Return an instance's processes; how busy they are nobody tells (gpu mechanics 1.12).

    Args:
        calls: the calls of this look at the GPU.
        handle: the instance's own handle. On the whole GPU's handle the processes of its instances
            are listed for the privileged alone, so that an empty list there says nothing.
    """
    found = _list_all(calls, handle)
    if found is None:
        return None
    memory, clients = found
    return _uses(memory, clients, {}, None)


def read_device_processes(
    calls: Calls, handle: Any, since_us: int | None, now_us: int
) -> tuple[tuple[ProcessUse, ...] | None, int | None]:
    """Return the processes of a GPU without instances, and the newest sample's time.

    Args:
        calls: the calls of this look at the GPU.
        handle: the GPU's handle.
        since_us: the newest sample's time at the look before; ``None`` at the first one. The
            driver's times are microseconds of the host's clock (gpu mechanics 1.7).
        now_us: the time of this look on that clock.

    Returns:
        (processes, time): what the next look must be given as its ``since_us``.
    """
    found = _list_all(calls, handle)
    if found is None:
        return None, since_us
    memory, clients = found
    # A time that lies ahead of us is of a clock that was set back: the driver would have nothing
    # newer for as long, and everybody would pass for idle.
    if since_us is None or since_us > now_us:
        since_us = now_us - FIRST_SAMPLES_US
    samples, code = calls.call("nvmlDeviceGetProcessUtilization", handle, since_us)
    if code == INSUFFICIENT_SIZE:  # more samples between its two calls
        samples, code = calls.call("nvmlDeviceGetProcessUtilization", handle, since_us)
    if code is not None:
        return _uses(memory, clients, {}, 0 if code in _NOTHING_RAN else None), since_us
    busy, newest_us = _busiest(samples, memory, since_us, now_us)
    return _uses(memory, clients, busy, 0), newest_us


def _list_all(calls: Calls, handle: Any) -> tuple[Memory, Collection[int]] | None:
    """Return the processes of all lists, and which of them are clients of MPS.

    Without the list of compute processes nothing is known. The other two a GPU or its driver may
    lack, and then nothing is in them; whoever fails for another reason hides processes.
    """
    compute, code = _list(calls, "nvmlDeviceGetComputeRunningProcesses", handle)
    if code is not None:
        return None
    memory: Memory = {}
    _merge(memory, compute)
    graphics, code = _list(calls, "nvmlDeviceGetGraphicsRunningProcesses", handle)
    if code is not None and code not in _NO_SUCH_LIST:
        return None
    _merge(memory, graphics or ())
    clients, code = _list(calls, "nvmlDeviceGetMPSComputeRunningProcesses", handle)
    if code is not None and code not in _NO_SUCH_LIST:
        return None
    _merge(memory, clients or ())
    return memory, {item.pid for item in clients or ()}


def _list(calls: Calls, name: str, handle: Any) -> tuple[Any, int | None]:
    """Return one list, or ``None`` and NVML's code.

    The binding asks for the number first and for the processes then; where there are more by then
    than it left room for, it gives up (gpu mechanics 1.6).
    """
    found, code = calls.call(name, handle)
    if code == INSUFFICIENT_SIZE:
        found, code = calls.call(name, handle)
    return found, code


def _merge(memory: Memory, processes: Iterable[Any]) -> None:
    """Add a list's processes: one that is in several has the most that any of them says.

    A driver whose struct has another size than the binding's fills in numbers that are no PIDs
    (gpu mechanics 1.6).
    """
    for item in processes:
        pid, size = item.pid, item.usedGpuMemory
        if not 0 < pid <= _PID_MAX:
            continue
        mib = None if size is None or size == _NO_VALUE else size // MIB
        before = memory.get(pid)
        memory[pid] = mib if before is None or (mib is not None and mib > before) else before


def _busiest(
    samples: Iterable[Any], pids: Collection[int], since_us: int, now_us: int
) -> tuple[dict[int, int | None], int]:
    """Return the most that each process was sampled at, and the newest sample's time.

    The driver leaves out who was idle, and may leave rubbish in the buffer: samples of nobody, of
    processes that ended, from before or from the far future (gpu mechanics 1.7). A share above 100
    is unknown rather than none: the process ran, at a share that nobody can read.
    """
    busy: dict[int, int | None] = {}
    newest_us, horizon_us = since_us, now_us + _AHEAD_US
    for item in samples:
        pid, time_us = item.pid, item.timeStamp
        if pid not in pids or not since_us < time_us <= horizon_us:
            continue
        newest_us = max(newest_us, time_us)
        share, most = item.smUtil, busy.get(pid) or 0
        if share > 100 and not most:
            busy[pid] = None
        elif most < share <= 100:
            busy[pid] = share
    return busy, newest_us


def _uses(
    memory: Memory,
    clients: Collection[int],
    busy: Mapping[int, int | None],
    otherwise: int | None,
) -> tuple[ProcessUse, ...]:
    """Put a list together; who was not sampled is as busy as ``otherwise`` says."""
    return tuple(
        ProcessUse(
            pid=pid,
            memory_mib=mib,
            busy_percent=busy.get(pid, otherwise),
            mps_client=pid in clients,
        )
        for pid, mib in sorted(memory.items())
    )
