"""Rows to domain values and back: the one place that knows how the ledger spells them."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import Row

from gpuspawner.domain.devices import (
    Device,
    DeviceUUID,
    HostId,
    HostInventory,
    Instance,
    Load,
    Trouble,
    Unavailable,
)
from gpuspawner.domain.leases import Lease, ServerKey, Source, State
from gpuspawner.domain.policy import Policy, policy_from_dict, policy_to_dict
from gpuspawner.domain.profiles import Profile, profile_from_dict, profile_to_dict
from gpuspawner.domain.reasons import Code, Reason
from gpuspawner.domain.slices import Hold, slice_from_dict
from gpuspawner.domain.uses import Attribution, ForeignProcess, OwnProcess, UnitUse, Use


def encode_profile(profile: Profile) -> str:
    """Write a profile as a text that is equal for equal profiles."""
    return json.dumps(profile_to_dict(profile), sort_keys=True, ensure_ascii=False)


def decode_profile(text: str) -> Profile:
    """Read what `encode_profile` wrote."""
    return profile_from_dict(json.loads(text))


def encode_policy(policy: Policy) -> str:
    """Write a policy as a text that is equal for equal policies."""
    return json.dumps(policy_to_dict(policy), sort_keys=True, ensure_ascii=False)


def decode_policy(text: str) -> Policy:
    """Read what `encode_policy` wrote."""
    return policy_from_dict(json.loads(text))


def encode_reason(reason: Reason | None) -> dict[str, Any] | None:
    """Write a reason as plain data."""
    if reason is None:
        return None
    return {"code": str(reason.code), "values": dict(reason.values)}


def decode_reason(data: Mapping[str, Any] | None) -> Reason | None:
    """Read what `encode_reason` wrote."""
    return None if data is None else Reason(Code(data["code"]), data["values"])


def decode_hold(row: Row[Any]) -> Hold:
    """Read a row of ``holds``."""
    return Hold(lease_id=row.lease_id, slice=slice_from_dict(row._asdict()), group=row.group_name)


def decode_lease(row: Row[Any], profile: Profile) -> Lease:
    """Read a row of ``leases``; the caller decodes (and may cache) the profile."""
    return Lease(
        lease_id=row.lease_id,
        key=ServerKey(hub_id=row.hub_id, user=row.user_name, server=row.server_name),
        state=State(row.state),
        profile=profile,
        image=row.image,
        engine=row.engine,
        requested_at=row.requested_at,
        granted_at=row.granted_at,
        running_at=row.running_at,
        start_deadline=row.start_deadline,
        detached_at=row.detached_at,
        look_again_at=row.look_again_at,
        last_seen_at=row.last_seen_at,
        finished_at=row.finished_at,
        finished_source=Source(row.finished_source) if row.finished_source else None,
        ended_at=row.ended_at,
        fence=row.fence,
        run_id=row.run_id,
        engine_id=row.engine_id,
        reason=decode_reason(row.reason),
        slices=tuple(slice_from_dict(item) for item in row.slices or ()),
        may_wait=row.may_wait,
        start_seconds=row.start_seconds,
    )


def encode_inventory(inventory: HostInventory) -> str:
    """Write what a host's agent saw."""
    return json.dumps(
        {
            "simulated": inventory.simulated,
            "driver_version": inventory.driver_version,
            "trouble": inventory.trouble,
            "devices": [_encode_device(device) for device in inventory.devices],
        },
        ensure_ascii=False,
    )


def decode_inventory(host_id: str, observed_at: datetime, text: str) -> HostInventory:
    """Read what `encode_inventory` wrote."""
    data = json.loads(text)
    return HostInventory(
        host_id=HostId(host_id),
        observed_at=observed_at,
        simulated=data["simulated"],
        driver_version=data["driver_version"],
        trouble=data["trouble"],
        devices=tuple(_decode_device(host_id, item) for item in data["devices"]),
    )


def _encode_device(device: Device) -> dict[str, Any]:
    load, unavailable = device.load, device.unavailable
    return {
        "uuid": device.uuid,
        "index": device.index,
        "model": device.model,
        "memory_mib": device.memory_mib,
        "partitioned": device.partitioned,
        "instances": [
            {
                "uuid": item.uuid,
                "profile": item.profile,
                "memory_mib": item.memory_mib,
                "used_mib": item.used_mib,
                "compute_slices": item.compute_slices,
                "busy_percent": item.busy_percent,
                "foreign": item.foreign,
            }
            for item in device.instances
        ],
        "load": {
            "used_mib": load.used_mib,
            "reserved_mib": load.reserved_mib,
            "busy_percent": load.busy_percent,
            "temperature_c": load.temperature_c,
            "power_w": load.power_w,
            "power_limit_w": load.power_limit_w,
        },
        "unavailable": None
        if unavailable is None
        else {
            "trouble": str(unavailable.trouble),
            "detail": unavailable.detail,
            "cleared_by": unavailable.cleared_by,
        },
        "foreign": device.foreign,
    }


def _decode_device(host_id: str, data: Mapping[str, Any]) -> Device:
    unavailable = data["unavailable"]
    return Device(
        uuid=DeviceUUID(data["uuid"]),
        host_id=HostId(host_id),
        index=data["index"],
        model=data["model"],
        memory_mib=data["memory_mib"],
        partitioned=data["partitioned"],
        instances=tuple(Instance(**item) for item in data["instances"]),
        load=Load(**data["load"]),
        unavailable=None
        if unavailable is None
        else Unavailable(
            trouble=Trouble(unavailable["trouble"]),
            detail=unavailable["detail"],
            cleared_by=unavailable["cleared_by"],
        ),
        foreign=data.get("foreign"),  # what was written before says nothing of it
    )


def encode_attribution(attribution: Attribution) -> str:
    """Write whose the processes of a host were."""
    return json.dumps(
        {
            "unavailable": attribution.unavailable,
            "uses": [asdict(use) for use in attribution.uses],
            "units": [asdict(unit) for unit in attribution.units],
        },
        ensure_ascii=False,
    )


def decode_attribution(host_id: str, observed_at: datetime, text: str) -> Attribution:
    """Read what `encode_attribution` wrote."""
    data = json.loads(text)
    return Attribution(
        host_id=HostId(host_id),
        observed_at=observed_at,
        uses=tuple(_decode_use(item) for item in data["uses"]),
        units=tuple(_decode_unit(item) for item in data["units"]),
        unavailable=data["unavailable"],
    )


def _decode_use(data: dict[str, Any]) -> Use:
    processes = data.pop("processes")
    own = None if processes is None else tuple(OwnProcess(**item) for item in processes)
    return Use(**data, processes=own)


def _decode_unit(data: dict[str, Any]) -> UnitUse:
    foreign = tuple(ForeignProcess(**item) for item in data.pop("foreign"))
    return UnitUse(**data, foreign=foreign)
