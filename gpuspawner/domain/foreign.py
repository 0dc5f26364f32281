"""Foreign use: what belongs to no lease may take a device out of what is handed out.

Small things run on every machine: a desktop, a monitor. What holds more than that has memory that
somebody was promised, or would be.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from gpuspawner.domain.devices import DeviceUUID, HostInventory
from gpuspawner.domain.units import format_memory_mib
from gpuspawner.domain.uses import Attribution, ForeignProcess, UnitUse

FOREIGN_LIMIT_MIB: Final = 1024
_MOST_NAMES: Final = 3


def foreign_use(
    found: Attribution, earlier: Attribution | None, known: Mapping[DeviceUUID, str]
) -> dict[DeviceUUID, str]:
    """Return who uses which devices and instances from outside.

    Where it cannot be told now, what was last known stands, also of a device that is not there to
    be asked: unknown is not gone. A process that cannot be traced is one that is ending, in one
    look; in two it holds what nobody may be given.

    Args:
        found: whose the processes in a look are.
        earlier: the same of the look before.
        known: what was returned then.
    """
    before = {unit.uuid: unit for unit in earlier.units} if earlier is not None else {}
    users = dict(known)
    for unit in found.units:
        who = _who(unit, before.get(unit.uuid), known.get(unit.uuid))
        users.pop(unit.uuid, None)
        if who is not None:
            users[unit.uuid] = who
    return users


def with_foreign_use(seen: HostInventory, users: Mapping[DeviceUUID, str]) -> HostInventory:
    """Return an inventory that says who uses its devices from outside.

    Of a device that is partitioned its instances say it: what used it whole was ended for that.
    """
    devices = tuple(
        replace(
            device,
            instances=tuple(
                replace(each, foreign=users.get(each.uuid)) for each in device.instances
            ),
            foreign=None if device.partitioned else users.get(device.uuid),
        )
        for device in seen.devices
    )
    return replace(seen, devices=devices)


def known_of(inventory: HostInventory) -> dict[DeviceUUID, str]:
    """Return who uses what from outside by an inventory that was written down."""
    users = {device.uuid: device.foreign for device in inventory.devices}
    for device in inventory.devices:
        users |= {instance.uuid: instance.foreign for instance in device.instances}
    return {uuid: who for uuid, who in users.items() if who is not None}


def _who(unit: UnitUse, before: UnitUse | None, known: str | None) -> str | None:
    counted = [each for each in unit.foreign if not each.tolerated]
    at_least_mib = sum(each.memory_mib or 0 for each in counted)
    if at_least_mib > FOREIGN_LIMIT_MIB:
        return _names(counted)
    stays_mib = min(unit.untold_mib or 0, (before.untold_mib or 0) if before else 0)
    if at_least_mib + stays_mib > FOREIGN_LIMIT_MIB:
        return f"a process that cannot be traced ({format_memory_mib(stays_mib)})"
    is_sure = unit.untold_mib is not None and all(each.memory_mib is not None for each in counted)
    if is_sure and at_least_mib + (unit.untold_mib or 0) <= FOREIGN_LIMIT_MIB:
        return None
    return known


def _names(processes: Sequence[ForeignProcess]) -> str:
    """Name the largest, each container or program once."""
    sizes: dict[str, int] = {}
    for each in processes:
        name = each.container or each.command or f"process {each.pid}"
        sizes[name] = sizes.get(name, 0) + (each.memory_mib or 0)
    largest = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    told = [f"{name} ({format_memory_mib(size)})" for name, size in largest[:_MOST_NAMES]]
    return ", ".join(told) + (", …" if len(largest) > _MOST_NAMES else "")
