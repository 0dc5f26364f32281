"""``gpuspawner status``: devices, slices, and who holds them."""

import argparse
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from gpuspawner.catalogue import Catalogue
from gpuspawner.cli.common import add_ledger, now, open_broker, table
from gpuspawner.domain.devices import HostInventory
from gpuspawner.domain.leases import Lease
from gpuspawner.domain.pool import FRESH_FOR, Pool, PooledDevice


def add_verbs(verbs: Any) -> None:
    """Add the verb."""
    verb = verbs.add_parser("status", help="show devices, slices, and who holds them")
    verb.add_argument("--json", action="store_true", help="for scripts")
    add_ledger(verb)
    verb.set_defaults(run=_status)


def _status(arguments: argparse.Namespace) -> int:
    at = now()
    with open_broker(arguments) as broker, broker.ledger.read() as books:
        hosts = books.hosts()
        pool = books.view(at)
        leases = {lease.lease_id: lease for lease in books.living()}
    report = [_host(host, pool, leases, at) for host in hosts]
    if arguments.json:
        print(json.dumps({"hosts": report, "living_leases": len(leases)}, indent=2))
        return 0
    if not report:
        print("No agent has reported a host yet. Is `gpuspawner agent` running?")
        return 0
    for host in report:
        print(_text(host))
    return 0


def _host(
    host: HostInventory, pool: Pool, leases: Mapping[int, Lease], at: datetime
) -> dict[str, Any]:
    return {
        "host_id": host.host_id,
        "observed_at": host.observed_at.isoformat(),
        "silent": at - host.observed_at > FRESH_FOR,
        "simulated": host.simulated,
        "trouble": host.trouble,
        "devices": [_device(pool.devices[device.uuid], leases) for device in host.devices],
    }


def _device(item: PooledDevice, leases: Mapping[int, Lease]) -> dict[str, Any]:
    device = item.device
    return {
        "uuid": device.uuid,
        "index": device.index,
        "model": device.model,
        "memory_mib": device.memory_mib,
        "used_mib": device.load.used_mib,
        "busy_percent": device.load.busy_percent,
        "partitioned": device.partitioned,
        "modes": sorted(mode for mode in item.rule.modes if item.may_take(mode)),
        "unavailable": None
        if item.unavailable is None
        else {"trouble": str(item.unavailable.trouble), "detail": item.unavailable.detail},
        "slices": _slices(item, leases),
    }


def _slices(item: PooledDevice, leases: Mapping[int, Lease]) -> list[dict[str, Any]]:
    units: list[tuple[str, int | None, str | None]] = [
        (instance.uuid, instance.memory_mib, instance.profile) for instance in item.device.instances
    ]
    named = {unit for unit, _, _ in units}
    units += [
        (unit, hold.slice.memory_mib, None)
        for unit, hold in item.holds.items()
        if unit not in named
    ]
    return [
        {
            "unit": unit,
            "profile": profile,
            "memory_mib": memory_mib,
            "cordoned": unit in item.unavailable_units,
            "lease_id": item.holds[unit].lease_id if unit in item.holds else None,
            "holder": _holder(item, unit, leases),
        }
        for unit, memory_mib, profile in units
    ]


def _holder(item: PooledDevice, unit: str, leases: Mapping[int, Lease]) -> str | None:
    hold = item.holds.get(unit)
    lease = leases.get(hold.lease_id) if hold else None
    if lease is None:
        return None
    return lease.key.user + (f"/{lease.key.server}" if lease.key.server else "")


def _text(host: Mapping[str, Any]) -> str:
    notes = []
    if host["simulated"]:
        notes.append("simulated, no real hardware")
    if host["silent"]:
        notes.append(f"silent since {host['observed_at']}: all below may have changed")
    if host["trouble"]:
        notes.append(host["trouble"])
    rows: list[Sequence[str]] = []
    words = Catalogue("en")
    for device in host["devices"]:
        trouble = device["unavailable"]
        rows.append([
            f"#{device['index']} {device['model']}", device["uuid"],
            words.memory(device["memory_mib"]), _percent(device["busy_percent"]),
            f"unavailable: {trouble['trouble']} {trouble['detail']}".strip() if trouble
            else "" if device["slices"] else "free",
        ])  # fmt: skip
        for item in device["slices"]:
            state = item["holder"] or ("cordoned" if item["cordoned"] else "free")
            size = words.memory(item["memory_mib"])
            rows.append([f"   {item['profile'] or 'slice'}", item["unit"], size, "", state])
    head = ["DEVICE", "UUID / UNIT", "MEMORY", "BUSY", "STATE"]
    title = f"Host {host['host_id']}" + (f" ({'; '.join(notes)})" if notes else "")
    return f"{title}\n{table(head, rows)}\n"


def _percent(value: int | None) -> str:
    return "—" if value is None else f"{value} %"
