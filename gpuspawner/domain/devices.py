"""Devices and instances: what hardware a host has, as last observed.

Identity is the UUID; an index is for show only, because it may change at a reboot
(NVML header; reference: gpu mechanics 1.3). Any reading may be ``None``: unknown, never zero.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NewType

DeviceUUID = NewType("DeviceUUID", str)
HostId = NewType("HostId", str)


class Mode(StrEnum):
    """How a device is handed out. A device with leases keeps its mode until it is empty."""

    WHOLE = "whole"
    INSTANCE = "mig"  # a hardware partition; other vendors' partitions and tiles have this shape
    MPS = "mps"
    TIME_SLICED = "time-sliced"

    @property
    def is_share(self) -> bool:
        """Whether several leases may hold parts of one device without hardware between them."""
        return self in (Mode.MPS, Mode.TIME_SLICED)


class Trouble(StrEnum):
    """Why a device or slice is unavailable."""

    CORDONED = "cordoned"
    LOST = "lost"  # the hardware does not answer any more
    SICK = "sick"  # it answers, and says that it is broken
    FOREIGN = "foreign"  # somebody without a lease uses it
    UNKNOWN = "unknown"  # it could not be asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Unavailable:
    """A device or slice that must not be handed out, why, and what clears it."""

    trouble: Trouble
    detail: str = ""
    cleared_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUse:
    """What one process has of one device or instance, as the driver lists it.

    ``pid`` is the host's, whatever container the process is in (gpu mechanics 2.1).
    ``busy_percent`` is the most that the driver sampled since the look before: the share of time in
    which kernels of this process ran. 0 is that none ran; of instances nobody tells it. Never a
    part of the device's own figure: of processes that take turns each may show 100.
    """

    pid: int
    memory_mib: int | None = None
    busy_percent: int | None = None
    mps_client: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A hardware partition of a device (a MIG instance): isolated in memory and faults.

    ``busy_percent`` is the share of time in which work ran on it since the look before, which only
    newer chips tell (GPM; gpu mechanics 1.12). ``processes`` are those on this instance; None is
    that they could not be listed.
    """

    uuid: DeviceUUID
    profile: str  # the driver's name for its size, such as "2g.10gb"
    memory_mib: int | None = None
    used_mib: int | None = None
    compute_slices: int | None = None
    busy_percent: int | None = None
    processes: tuple[ProcessUse, ...] | None = None
    foreign: str | None = None  # as of a device


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a device is doing, each reading unknown for itself.

    ``busy_percent`` is the share of time in which at least one kernel ran (0 to 100). ``used_mib``
    does not count ``reserved_mib``, which the driver keeps for itself; where an old driver counts
    both together, the reserve is unknown.
    """

    used_mib: int | None = None
    reserved_mib: int | None = None
    busy_percent: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One physical GPU as last observed.

    ``processes`` are those on the device itself, whose instances list their own; None is that they
    could not be listed. ``unavailable`` is the hardware's own trouble; ``foreign`` is who uses it
    without a lease, beside that and as last known.
    """

    uuid: DeviceUUID
    host_id: HostId
    index: int
    model: str
    memory_mib: int | None
    partitioned: bool | None = False  # hands out its instances and never itself; None is unknown
    instances: tuple[Instance, ...] = ()
    load: Load = field(default_factory=Load)
    processes: tuple[ProcessUse, ...] | None = None
    unavailable: Unavailable | None = None
    foreign: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostInventory:
    """Everything that one host's agent saw in one look.

    ``trouble`` is set when the hardware could not be asked at all (no driver, no library, an
    error at initialisation): the devices are then those of the last good look, if any.
    """

    host_id: HostId
    observed_at: datetime
    devices: tuple[Device, ...] = ()
    simulated: bool = False
    driver_version: str | None = None
    trouble: str | None = None
