"""Slices: the smallest things that are handed out, and the holds that leases have on them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuspawner.domain.devices import DeviceUUID, HostId, Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A whole device, one instance, or one share of a device.

    ``unit`` names the part of the device that nobody else may hold at the same time: ``whole``,
    the instance's UUID, or ``share-<ordinal>``. ``uuid`` is what the engine is asked for: the
    instance's UUID, else the device's.
    """

    host_id: HostId
    device_uuid: DeviceUUID
    mode: Mode
    unit: str
    memory_mib: int | None  # what the holder may use; None when the hardware does not say
    compute_percent: int | None = None
    instance_profile: str | None = None
    model: str = ""

    @property
    def uuid(self) -> DeviceUUID:
        """The UUID under which the engine attaches this slice."""
        return DeviceUUID(self.unit) if self.mode is Mode.INSTANCE else self.device_uuid

    @property
    def slice_id(self) -> str:
        """A name of the slice that is unique in the pool and stable over restarts."""
        return f"{self.device_uuid}/{self.unit}" if self.mode.is_share else str(self.uuid)


def slice_to_dict(item: Slice) -> dict[str, Any]:
    """Write a slice as plain data."""
    return {
        "host_id": item.host_id,
        "device_uuid": item.device_uuid,
        "mode": str(item.mode),
        "unit": item.unit,
        "memory_mib": item.memory_mib,
        "compute_percent": item.compute_percent,
        "instance_profile": item.instance_profile,
        "model": item.model,
    }


def slice_from_dict(data: Mapping[str, Any]) -> Slice:
    """Read what `slice_to_dict` wrote.

    Raises:
        KeyError, ValueError: it is something else.
    """
    return Slice(
        host_id=HostId(data["host_id"]),
        device_uuid=DeviceUUID(data["device_uuid"]),
        mode=Mode(data["mode"]),
        unit=data["unit"],
        memory_mib=data["memory_mib"],
        compute_percent=data["compute_percent"],
        instance_profile=data["instance_profile"],
        model=data["model"],
    )


# Device, unit and lease: what tells one hold from every other there ever was.
HoldKey = tuple[str, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """One slice held by one living lease; ``group`` is who may share the device with it."""

    lease_id: int
    slice: Slice
    group: str | None = None

    @property
    def key(self) -> HoldKey:
        """What tells this hold from every other; a hold never changes while it lives."""
        return (self.slice.device_uuid, self.slice.unit, self.lease_id)
