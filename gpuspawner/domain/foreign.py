"""Foreign use: what belongs to no lease may take a device out of what is handed out.

Small things run on every machine: a desktop, a monitor. What holds more than that has memory that
somebody was promised, or would be.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from gpuspawner.domain.attribution import Attribution, ForeignProcess, UnitUse
from gpuspawner.domain.devices import DeviceUUID, HostInventory, Trouble, Unavailable
from gpuspawner.domain.units import format_memory_mib

FOREIGN_LIMIT_MIB: Final = 1024
_MOST_NAMES: Final = 3


def foreign_use(
    found: Attribution, earlier: Attribution | None, known: Mapping[DeviceUUID, Unavailable]
) -> dict[DeviceUUID, Unavailable]:
    """Return the devices and instances that are used from outside.

    Where it cannot be told now, what was last known stands: unknown is not gone. A process that
    cannot be traced is one that is ending, in one look; in two it holds what nobody may be given.

    Args:
        found: whose the processes in a look are.
        earlier: the same of the look before.
        known: what was returned then.
    """
    before = {unit.uuid: unit for unit in earlier.units} if earlier is not None else {}
    verdicts: dict[DeviceUUID, Unavailable] = {}
    for unit in found.units:
        why = _verdict(unit, before.get(unit.uuid), known.get(unit.uuid))
        if why is not None:
            verdicts[unit.uuid] = why
    return verdicts


def with_foreign_use(
    seen: HostInventory, verdicts: Mapping[DeviceUUID, Unavailable]
) -> HostInventory:
    """Return an inventory in which what is used from outside is unavailable.

    What the hardware itself says comes first.
    """
    devices = tuple(
        replace(
            device,
            instances=tuple(
                replace(each, unavailable=verdicts.get(each.uuid)) for each in device.instances
            ),
            unavailable=device.unavailable or verdicts.get(device.uuid),
        )
        for device in seen.devices
    )
    return replace(seen, devices=devices)


def known_of(inventory: HostInventory) -> dict[DeviceUUID, Unavailable]:
    """Return what an inventory that was judged says of foreign use."""
    verdicts = {device.uuid: device.unavailable for device in inventory.devices}
    for device in inventory.devices:
        verdicts |= {instance.uuid: instance.unavailable for instance in device.instances}
    return {uuid: why for uuid, why in verdicts.items() if why and why.trouble is Trouble.FOREIGN}


def _verdict(
    unit: UnitUse, before: UnitUse | None, known: Unavailable | None
) -> Unavailable | None:
    if unit.foreign_mib is None and not unit.foreign and unit.untold_mib is None:
        return known  # nothing could be listed
    counted = [each for each in unit.foreign if not each.tolerated]
    at_least_mib = sum(each.memory_mib or 0 for each in counted)
    if at_least_mib > FOREIGN_LIMIT_MIB:
        return _used_by(_names(counted))
    stays_mib = min(unit.untold_mib or 0, (before.untold_mib or 0) if before else 0)
    if at_least_mib + stays_mib > FOREIGN_LIMIT_MIB:
        return _used_by(f"a process that cannot be traced ({format_memory_mib(stays_mib)})")
    is_sure = unit.untold_mib is not None and all(x.memory_mib is not None for x in counted)
    if is_sure and at_least_mib + (unit.untold_mib or 0) <= FOREIGN_LIMIT_MIB:
        return None
    return known


def _used_by(names: str) -> Unavailable:
    return Unavailable(trouble=Trouble.FOREIGN, detail=names, cleared_by="stopping what uses it")


def _names(processes: Sequence[ForeignProcess]) -> str:
    """Name the largest, each container or program once."""
    sizes: dict[str, int] = {}
    for each in processes:
        name = each.container or each.command or f"process {each.pid}"
        sizes[name] = sizes.get(name, 0) + (each.memory_mib or 0)
    largest = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    told = [f"{name} ({format_memory_mib(size)})" for name, size in largest[:_MOST_NAMES]]
    return ", ".join(told) + (", …" if len(largest) > _MOST_NAMES else "")
