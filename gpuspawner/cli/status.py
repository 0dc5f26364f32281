"""``gpuspawner status``: devices, slices, who holds them, and what is not known or not ours."""

import argparse
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gpuspawner.cli.common import add_ledger, now, open_broker, server_name, spell_unknown
from gpuspawner.cli.status_text import text
from gpuspawner.domain.devices import DeviceUUID, HostInventory, Unavailable
from gpuspawner.domain.knowledge import Knowledge
from gpuspawner.domain.leases import Lease
from gpuspawner.domain.pool import FRESH_FOR, Pool, PooledDevice
from gpuspawner.domain.reconciliation import EngineState, Stray
from gpuspawner.domain.slices import Hold
from gpuspawner.domain.uses import Attribution, Use, fresh_uses

# By lease, and by device or instance.
Uses = Mapping[tuple[int, DeviceUUID], Use]


def add_verbs(verbs: Any) -> None:
    """Add the verb."""
    verb = verbs.add_parser("status", help="show devices, slices, who holds them, and trouble")
    verb.add_argument("--json", action="store_true", help="for scripts")
    add_ledger(verb)
    verb.set_defaults(run=_status)


def _status(arguments: argparse.Namespace) -> int:
    at = now()
    with open_broker(arguments) as broker, broker.ledger.read() as books:
        hosts = books.hosts()
        pool = books.view(at)
        leases = {lease.lease_id: lease for lease in books.living()}
        states = books.engine_states()
        strays = books.strays()
        attributions = books.attributions()
    uses = fresh_uses(attributions, at)
    knowledge = Knowledge(states, hosts, at)
    report = {
        "hosts": [
            _host(host, attributions.get(host.host_id), pool, leases, knowledge, uses, at)
            for host in hosts
        ],
        "engines": [_engine(state, leases, knowledge) for state in states],
        "strays": [
            _stray(stray, host_id, engine)
            for (host_id, engine), found in sorted(strays.items())
            for stray in found
        ],
        "living_leases": len(leases),
    }
    print(json.dumps(report, indent=2) if arguments.json else text(report))
    return 0


def _host(
    host: HostInventory,
    attribution: Attribution | None,
    pool: Pool,
    leases: Mapping[int, Lease],
    knowledge: Knowledge,
    uses: Uses,
    at: datetime,
) -> dict[str, Any]:
    return {
        "host_id": host.host_id,
        "observed_at": host.observed_at.isoformat(),
        "silent": at - host.observed_at > FRESH_FOR,
        "simulated": host.simulated,
        "trouble": host.trouble,
        "attribution_unavailable": None if attribution is None else attribution.unavailable,
        "devices": [_device(pool.devices[device.uuid], leases, knowledge, uses)
                    for device in host.devices],
    }  # fmt: skip


def _device(
    item: PooledDevice,
    leases: Mapping[int, Lease],
    knowledge: Knowledge,
    uses: Uses,
) -> dict[str, Any]:
    device = item.device
    return {
        "uuid": device.uuid,
        "index": device.index,
        "model": device.model,
        "memory_mib": device.memory_mib,
        "used_mib": device.load.used_mib,
        "reserved_mib": device.load.reserved_mib,
        "busy_percent": device.load.busy_percent,
        "partitioned": device.partitioned,
        "modes": sorted(mode for mode in item.rule.modes if item.may_take(mode)),
        "unavailable": _trouble(item.unavailable),
        "slices": _slices(item, leases, knowledge, uses),
    }


def _slices(
    item: PooledDevice,
    leases: Mapping[int, Lease],
    knowledge: Knowledge,
    uses: Uses,
) -> list[dict[str, Any]]:
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
            "unavailable": _trouble(item.unavailable_units.get(unit)),
            "lease_id": item.holds[unit].lease_id if unit in item.holds else None,
            **_holder(item, unit, leases, knowledge),
            **_use(item.holds.get(unit), uses),
        }
        for unit, memory_mib, profile in units
    ]


def _trouble(why: Unavailable | None) -> dict[str, str] | None:
    return None if why is None else {"trouble": str(why.trouble), "detail": why.detail}


def _holder(
    item: PooledDevice, unit: str, leases: Mapping[int, Lease], knowledge: Knowledge
) -> dict[str, Any]:
    hold = item.holds.get(unit)
    lease = leases.get(hold.lease_id) if hold else None
    if lease is None:
        return {"holder": None, **spell_unknown(None)}
    return {"holder": server_name(lease.key), **spell_unknown(knowledge.of(lease))}


def _use(hold: Hold | None, uses: Uses) -> dict[str, int | None]:
    """Spell what a slice's holder uses of it; null is not known, or that nobody holds it."""
    use = None if hold is None else uses.get((hold.lease_id, hold.slice.uuid))
    if use is None:
        return {"used_mib": None, "busy_percent": None}
    return {"used_mib": use.memory_mib, "busy_percent": use.busy_percent}


def _engine(
    state: EngineState, leases: Mapping[int, Lease], knowledge: Knowledge
) -> dict[str, Any]:
    there = [lease for lease in leases.values() if state in knowledge.engines_of(lease)]
    return {
        "host_id": state.host_id,
        "engine": state.engine,
        "answered_at": state.answered_at.isoformat() if state.answered_at else None,
        **spell_unknown(knowledge.of_engine(state)),
        "missed": knowledge.is_missed(state, there),
        "detail": state.detail,
        "unknown_leases": [lease.lease_id for lease in there if knowledge.of(lease)],
    }


def _stray(stray: Stray, host_id: str, engine: str) -> dict[str, Any]:
    return {
        "host_id": host_id,
        "engine": engine,
        "run_id": stray.run_id,
        "name": stray.name,
        "devices": None if stray.devices is None else list(stray.devices),
    }
