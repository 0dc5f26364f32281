"""What makes a device sick, lost or unknown, and what clears it.

Pure rules over numbers, so that real and simulated hardware come to the same verdict. Numbers
are NVML's (gpu mechanics 1.2, 1.9 and 1.10); words are for people.
"""

from dataclasses import replace

from gpuspawner.domain.devices import Device, Instance, Load, Trouble, Unavailable

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Xid numbers that a user's own program causes; the GPU is fine (gpu mechanics 1.10)."""

_RESET = "a reset of the GPU while nothing uses it, or a reboot of its host"

# Field 230 (gpu mechanics 1.9). The last two exist only in the newest headers.
_RECOVERY = {
    1: ("a reset of the GPU", _RESET),
    2: ("a reboot of the host", "a reboot of its host"),
    3: ("that peer-to-peer work is drained", "a reset of the GPU after its work has ended"),
    4: ("that the GPU is drained and reset", _RESET),
    5: ("a recovery of its IMEX domain", "a recovery of the IMEX domain"),
    6: ("a bus reset", "a bus reset or a reboot of its host"),
    7: ("a reboot of the system", "a reboot of its host"),
}


def from_xid(number: int) -> Unavailable | None:
    """Judge an Xid, the driver's error number for a GPU.

    Every number that is not known to come from a user's program counts against the GPU, as in
    NVIDIA's device plugin (gpu mechanics 1.10).
    """
    if number in APPLICATION_XIDS:
        return None
    return Unavailable(
        trouble=Trouble.SICK, detail=f"The driver reported Xid {number}.", cleared_by=_RESET
    )


def from_counters(
    *,
    recovery_action: int | None = None,
    remap_failure: int | None = None,
    remap_pending: int | None = None,
    retirement_pending: int | None = None,
) -> Unavailable | None:
    """Judge what a GPU says of itself (gpu mechanics 1.9). ``None`` is unknown and no sickness.

    Args:
        recovery_action: field 230; 0 is none, and an unknown number above 0 means drain.
        remap_failure: above 0, a memory row could not be replaced: the board is at its end.
        remap_pending: above 0, a memory row is replaced at the next reset (Ampere and later).
        retirement_pending: above 0, a memory page is retired at the next reset (before Ampere).
    """
    if remap_failure:
        return _sick("A failing memory row could not be remapped.", "a replacement of the board")
    if recovery_action:
        wanted, cleared_by = _RECOVERY.get(
            recovery_action, (f"recovery action {recovery_action}", _RESET)
        )
        return _sick(f"The driver asks for {wanted}.", cleared_by)
    if remap_pending:
        return _sick("A failing memory row waits for its remapping.", _RESET)
    if retirement_pending:
        return _sick("A failing memory page waits for its retirement.", _RESET)
    return None


def reset_required() -> Unavailable:
    """Return the verdict on a GPU that answers NVML code 16 (gpu mechanics 1.2)."""
    return _sick("The GPU must be reset before it works again.", _RESET)


def lost(cause: str) -> Unavailable:
    """Return the verdict on a GPU that the host can no longer reach; ``cause`` in a few words."""
    return Unavailable(
        trouble=Trouble.LOST,
        detail=f"The GPU does not answer any more ({cause}).",
        cleared_by="the GPU answering again, mostly after a reset or a reboot of its host",
    )


def unanswered(seconds: float) -> Unavailable:
    """Return the verdict on a GPU whose call has not come back within so many seconds."""
    return unknown(f"The GPU does not answer within {seconds:g} s.")


def unknown(detail: str, cleared_by: str = "a look that the GPU answers") -> Unavailable:
    """Return the verdict on a GPU that could not be asked: neither well nor sick."""
    return Unavailable(trouble=Trouble.UNKNOWN, detail=detail, cleared_by=cleared_by)


def without_readings(device: Device, why: Unavailable) -> Device:
    """Return a device as it was last known, with every reading unknown.

    What it *is* stays (UUID, model, memory, instances): unknown is not gone. What it *does* is
    not carried on, since an old reading would pass for a fresh one.
    """
    return replace(
        device,
        load=Load(),
        processes=None,
        instances=tuple(unread(instance) for instance in device.instances),
        unavailable=why,
    )


def unread(instance: Instance) -> Instance:
    """Return an instance as it was last known, with every reading unknown."""
    return replace(instance, used_mib=None, busy_percent=None, processes=None)


def _sick(detail: str, cleared_by: str) -> Unavailable:
    return Unavailable(trouble=Trouble.SICK, detail=detail, cleared_by=cleared_by)
