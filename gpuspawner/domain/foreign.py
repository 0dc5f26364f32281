"""Foreign use: what belongs to no lease may take a device out of what is handed out.

Small things run on every machine: a desktop, a monitor. What holds more than that has memory that
somebody was promised, or would be.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from gpuspawner.domain.attribution import Attribution, ForeignProcess, UnitUse
from gpuspawner.domain.devices import (
    Device,
    DeviceUUID,
    HostInventory,
    Instance,
    Trouble,
    Unavailable,
)
from gpuspawner.domain.units import format_memory_mib

FOREIGN_LIMIT_MIB: Final = 1024
_MOST_NAMES: Final = 3


def with_foreign_use(
    seen: HostInventory, found: Attribution, before: HostInventory | None
) -> HostInventory:
    """Return an inventory in which what is used from outside is unavailable.

    Where it cannot be told now, what was last known stands: unknown is not gone. What the hardware
    itself says comes first.

    Args:
        seen: one look at a host.
        found: whose the processes in that look are.
        before: the last look that was written down, judged as this one is to be.
    """
    units = {unit.uuid: unit for unit in found.units}
    known = _known(before)
    devices = tuple(_judge_device(device, units, known) for device in seen.devices)
    return replace(seen, devices=devices)


def _judge_device(
    device: Device, units: Mapping[DeviceUUID, UnitUse], known: Mapping[DeviceUUID, Unavailable]
) -> Device:
    instances = tuple(_judge_instance(each, units, known) for each in device.instances)
    why = device.unavailable or _verdict(device.uuid, units, known)
    return replace(device, instances=instances, unavailable=why)


def _judge_instance(
    instance: Instance,
    units: Mapping[DeviceUUID, UnitUse],
    known: Mapping[DeviceUUID, Unavailable],
) -> Instance:
    return replace(instance, unavailable=_verdict(instance.uuid, units, known))


def _verdict(
    uuid: DeviceUUID,
    units: Mapping[DeviceUUID, UnitUse],
    known: Mapping[DeviceUUID, Unavailable],
) -> Unavailable | None:
    unit = units.get(uuid)
    if unit is None or unit.foreign_mib is None:
        return known.get(uuid)
    if unit.foreign_mib <= FOREIGN_LIMIT_MIB:
        return None
    return Unavailable(
        trouble=Trouble.FOREIGN, detail=_names(unit.foreign), cleared_by="stopping what uses it"
    )


def _names(processes: Sequence[ForeignProcess]) -> str:
    """Name the largest, each container or program once."""
    sizes: dict[str, int] = {}
    for each in processes:
        name = each.container or each.command or f"process {each.pid}"
        sizes[name] = sizes.get(name, 0) + (each.memory_mib or 0)
    largest = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    told = [f"{name} ({format_memory_mib(size)})" for name, size in largest[:_MOST_NAMES]]
    return ", ".join(told) + (", …" if len(largest) > _MOST_NAMES else "")


def _known(before: HostInventory | None) -> dict[DeviceUUID, Unavailable]:
    if before is None:
        return {}
    verdicts = {device.uuid: device.unavailable for device in before.devices}
    for device in before.devices:
        verdicts |= {instance.uuid: instance.unavailable for instance in device.instances}
    return {uuid: why for uuid, why in verdicts.items() if why and why.trouble is Trouble.FOREIGN}
