"""``gpuspawner status``: devices, slices, who holds them, and what is not known or not ours."""

import argparse
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gpuspawner.cli.common import add_ledger, now, open_broker, server_name, spell_unknown
from gpuspawner.cli.status_text import text
from gpuspawner.domain.devices import HostInventory
from gpuspawner.domain.knowledge import Knowledge
from gpuspawner.domain.leases import Lease
from gpuspawner.domain.pool import FRESH_FOR, Pool, PooledDevice
from gpuspawner.domain.reconciliation import EngineState, Stray


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
    knowledge = Knowledge(states, hosts, at)
    report = {
        "hosts": [_host(host, pool, leases, knowledge, at) for host in hosts],
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
    pool: Pool,
    leases: Mapping[int, Lease],
    knowledge: Knowledge,
    at: datetime,
) -> dict[str, Any]:
    return {
        "host_id": host.host_id,
        "observed_at": host.observed_at.isoformat(),
        "silent": at - host.observed_at > FRESH_FOR,
        "simulated": host.simulated,
        "trouble": host.trouble,
        "devices": [_device(pool.devices[device.uuid], leases, knowledge)
                    for device in host.devices],
    }  # fmt: skip


def _device(
    item: PooledDevice, leases: Mapping[int, Lease], knowledge: Knowledge
) -> dict[str, Any]:
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
        "slices": _slices(item, leases, knowledge),
    }


def _slices(
    item: PooledDevice, leases: Mapping[int, Lease], knowledge: Knowledge
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
            "cordoned": unit in item.unavailable_units,
            "lease_id": item.holds[unit].lease_id if unit in item.holds else None,
            **_holder(item, unit, leases, knowledge),
        }
        for unit, memory_mib, profile in units
    ]


def _holder(
    item: PooledDevice, unit: str, leases: Mapping[int, Lease], knowledge: Knowledge
) -> dict[str, Any]:
    hold = item.holds.get(unit)
    lease = leases.get(hold.lease_id) if hold else None
    if lease is None:
        return {"holder": None, **spell_unknown(None)}
    return {"holder": server_name(lease.key), **spell_unknown(knowledge.of(lease))}


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
