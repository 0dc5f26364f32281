"""Reconciliation: what a container that an engine has means for the books.

A container carries the number of its grant, the *fence*. It is unique for each grant that any
books of a hub ever gave, so it tells whose container this is even where the books are yesterday's
or new: a lease is looked for by it, and never by the lease's own number.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from gpuspawner.domain.devices import Device, DeviceUUID, HostInventory
from gpuspawner.domain.leases import Lease, ServerKey, State
from gpuspawner.domain.pool import Pool
from gpuspawner.domain.profiles import Profile
from gpuspawner.domain.slices import Hold, Slice

_UUIDS: Final = ("GPU-", "MIG-")
_MOST_DIGITS: Final = 18  # more than any books need, and room for as many in a database's integer


def read_fence(text: str) -> int | None:
    """Read the number of a grant from a container's mark; None when it can be none.

    Marks are others' to forge: a number that no database could hold must not stop a round.
    """
    is_number = text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
    return int(text) if is_number else None


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantCopy:
    """A grant as its container carries it: enough to enter it into books that lack it."""

    profile: Profile
    slices: tuple[Slice, ...]
    image: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A container or process that an engine's list has.

    ``devices`` are the names by which it was given devices (UUIDs, indices); None is *all of
    them, or which ones cannot be told*. ``key``, ``fence`` and ``grant`` are from our own marks,
    where it has any; ``runs`` is also true of one that is paused. ``attached`` is whether its
    engine attached the devices; a process is merely told which are its own. ``tolerated``: its
    operator says that it may use any device.
    """

    run_id: str
    name: str
    runs: bool
    made_at: datetime
    devices: tuple[str, ...] | None = ()
    attached: bool = True
    tolerated: bool = False
    key: ServerKey | None = None
    fence: int | None = None
    grant: GrantCopy | None = None


class Verdict(StrEnum):
    """What is done about a container."""

    KEEP = "keep"  # its lease lives, or it has no device: none of this matter
    CLEAR = "clear"  # a container of a grant that is over: stopped and removed
    READOPT = "readopt"  # it runs by a grant that the books lack: entered again
    REPORT = "report"  # it has devices without a lease of ours: shown, never touched


def verdict(found: Found, lease: Lease | None, our_hubs: Iterable[str]) -> Verdict:
    """Decide about a container.

    Args:
        found: the container, from a list made before the books were read.
        lease: the lease with its fence, living or ended; None when the books have none. One of
            another server is none of this container's: other books gave the same number.
        our_hubs: the ids of the hubs whose books these are.
    """
    if found.key is None or found.fence is None or found.key.hub_id not in our_hubs:
        uses_devices = found.runs and found.attached and found.devices != ()
        return Verdict.REPORT if uses_devices else Verdict.KEEP
    if lease is not None and lease.key == found.key:
        is_over = lease.state is State.ENDED
        is_another = lease.run_id is not None and lease.run_id != found.run_id
        return Verdict.CLEAR if is_over or is_another else Verdict.KEEP
    if not found.runs:
        return Verdict.CLEAR
    return Verdict.READOPT if found.grant is not None else Verdict.REPORT


def may_readopt(pool: Pool, grant: GrantCopy) -> bool:
    """Whether a grant that the books lack takes nothing that they have given to somebody else.

    A device that is not observed now is no hindrance, nor is a cordon, a rule or a headroom that
    came since: what runs holds what it holds.
    """
    holds = [
        *pool.entered.values(),
        *(Hold(lease_id=0, slice=each, group=grant.profile.share_group) for each in grant.slices),
    ]
    return all(
        _may_stand_together([hold for hold in holds if hold.slice.device_uuid == uuid], pool)
        for uuid in {each.device_uuid for each in grant.slices}
    )


def _may_stand_together(holds: Sequence[Hold], pool: Pool) -> bool:
    """Whether one device may be held like this."""
    mode = holds[0].slice.mode
    if len({hold.slice.unit for hold in holds}) < len(holds):
        return False
    if len({hold.slice.mode for hold in holds}) > 1:
        return False
    if not mode.is_share:
        return True
    device = pool.devices.get(holds[0].slice.device_uuid)
    memory_mib = None if device is None else device.device.memory_mib
    promised_mib = sum(hold.slice.memory_mib or 0 for hold in holds)
    fits = memory_mib is None or promised_mib <= memory_mib
    return fits and len({hold.group for hold in holds}) == 1


def used_devices(
    names: Sequence[str] | None, inventory: HostInventory | None
) -> tuple[DeviceUUID, ...] | None:
    """Return the UUIDs of the devices that a container was given by these names.

    A UUID that is none of the host's present devices is one that nobody is handed either: lost,
    or of another lab that is simulated. An index that fits none may be any of them.

    Args:
        names: UUIDs, their beginnings, and indices; None is all of the host's.
        inventory: what its host has; None while nobody has looked.

    Returns:
        The devices; None for all of the host's.
    """
    present = inventory.devices if inventory is not None else ()
    if names is None or (names and not present):
        return None
    found: set[DeviceUUID] = set()
    for name in names:
        fitting = [device.uuid for device in present if _is_named(device, name)]
        if not fitting and not name.startswith(_UUIDS):
            return None
        found.update(fitting)
    return tuple(sorted(found))


def _is_named(device: Device, name: str) -> bool:
    """Whether a name is a device's: its index or UUID, or that of one of its instances.

    ``0:1`` is an instance by the index of its device, ``MIG-GPU-<UUID>/1/0`` one by its UUID as
    drivers before R470 spell it. The beginning of a UUID will do, as it does for the engine.
    """
    index = name.partition(":")[0]
    if index.isascii() and index.isdigit():
        return device.index == int(index)
    if name.startswith("MIG-GPU-"):
        return name.removeprefix("MIG-").partition("/")[0] == device.uuid
    uuids = (device.uuid, *(instance.uuid for instance in device.instances))
    return any(uuid.startswith(name) for uuid in uuids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stray:
    """What runs with devices and has no lease. ``devices`` None: all of the host's."""

    run_id: str
    name: str
    devices: tuple[DeviceUUID, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """How an engine answered its host's agent: ``silent_since`` None is that it answers."""

    host_id: str
    engine: str
    answered_at: datetime | None = None
    silent_since: datetime | None = None
    detail: str = ""
