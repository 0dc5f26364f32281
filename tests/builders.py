"""Plain values for tests: a lab in one line, with invented people and courses."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuspawner.domain.devices import (
    Device,
    DeviceUUID,
    HostId,
    HostInventory,
    Instance,
    Load,
    Mode,
)
from gpuspawner.domain.leases import Claim, Evidence, ServerKey, Source
from gpuspawner.domain.policy import DeviceRule, Policy
from gpuspawner.domain.profiles import CPU_ONLY, Profile
from gpuspawner.domain.reasons import Code, Reason, reason
from gpuspawner.domain.slices import Hold, Slice

T0 = datetime(2026, 9, 1, 8, 0, tzinfo=UTC)
SHARING = frozenset({Mode.WHOLE, Mode.INSTANCE, Mode.TIME_SLICED})
IDLE = Load(used_mib=0, busy_percent=0)

WHOLE = Profile(name="whole", title="A whole GPU", mode=Mode.WHOLE)
PAIR = Profile(name="pair", title="Two GPUs", mode=Mode.WHOLE, count=2)
SMALL_MIG = Profile(name="mig-small", title="A small slice", mode=Mode.INSTANCE, instance="1g.5gb")
ANY_MIG = Profile(name="mig-any", title="Any slice", mode=Mode.INSTANCE, memory_mib=1)
ML_SHARE = Profile(
    name="ml-share", title="A share for ml101", mode=Mode.TIME_SLICED, memory_mib=4096,
    groups=("ml101",),
)  # fmt: skip
VIS_SHARE = replace(ML_SHARE, name="vis-share", title="A share for vis202", groups=("vis202",))
PROFILES = (WHOLE, PAIR, SMALL_MIG, ANY_MIG, ML_SHARE, VIS_SHARE, CPU_ONLY)

WANTED = reason(Code.STOPPED)
EXITED = Evidence(source=Source.ENGINE, finished_at=T0 + timedelta(hours=1), exit_code=0)
NEVER_RAN = Evidence(source=Source.NEVER_RAN)


def after(seconds: float) -> datetime:
    """Return a time that many seconds after the tests' beginning of time."""
    return T0 + timedelta(seconds=seconds)


def device(name: str, **values: Any) -> Device:
    """Make a GPU with 16 GiB; ``name`` is its UUID without the prefix."""
    given: dict[str, Any] = {
        "uuid": DeviceUUID(f"GPU-{name}"), "host_id": HostId("lab"), "index": 0,
        "model": "Tesla T4", "memory_mib": 16384, "load": IDLE,
    }  # fmt: skip
    return Device(**(given | values))


def mig_device(name: str, *sizes: int, **values: Any) -> Device:
    """Make a partitioned GPU; a size in GiB gives an instance ``<n>g.<size>gb``."""
    instances = tuple(
        Instance(
            uuid=DeviceUUID(f"MIG-{name}-{at}"), profile=f"{max(size // 5, 1)}g.{size}gb",
            memory_mib=size * 1024,
        )
        for at, size in enumerate(sizes)
    )  # fmt: skip
    given = {"model": "A100-SXM4-40GB", "memory_mib": 40960, "partitioned": True}
    return device(name, instances=instances, **(given | values))


def inventory(*devices: Device, host_id: str = "lab", **values: Any) -> HostInventory:
    """Make what a simulated host's agent saw at the beginning of time."""
    devices = tuple(replace(item, host_id=HostId(host_id)) for item in devices)
    given: dict[str, Any] = {"observed_at": T0, "simulated": True}
    return HostInventory(host_id=HostId(host_id), devices=devices, **(given | values))


def sharing_policy(*profiles: Profile, **values: Any) -> Policy:
    """Make a policy in which every device may be shared."""
    return Policy(
        profiles=profiles or PROFILES, rules=(DeviceRule(modes=SHARING),), **values
    )  # fmt: skip


def key(user: str, server: str = "") -> ServerKey:
    """Name a server of the tests' hub."""
    return ServerKey(hub_id="hub", user=user, server=server)


def claim(user: str, profile: Profile = WHOLE, server: str = "", **values: Any) -> Claim:
    """Make a claim of a person's server."""
    return Claim(key=key(user, server), profile=profile, **values)


def hold_of(lease_id: int, device_uuid: str, **values: Any) -> Hold:
    """Make a hold of a whole device unless told otherwise."""
    group = values.pop("group", None)
    given: dict[str, Any] = {
        "host_id": HostId("lab"), "device_uuid": DeviceUUID(device_uuid), "mode": Mode.WHOLE,
        "unit": "whole", "memory_mib": 16384, "model": "Tesla T4",
    }  # fmt: skip
    return Hold(lease_id=lease_id, slice=Slice(**(given | values)), group=group)


def share_hold(lease_id: int, device_uuid: str, ordinal: int, mib: int, group: str) -> Hold:
    """Make a hold of a time-sliced share."""
    return hold_of(
        lease_id, device_uuid, mode=Mode.TIME_SLICED, unit=f"share-{ordinal}",
        memory_mib=mib, group=group,
    )  # fmt: skip


def stopped() -> Reason:
    """Return the commonest reason of an end."""
    return WANTED
