"""Attribution: whose is what runs on the devices of a host.

A process that the driver lists runs in a container, and that belongs to a lease, or to nobody that
the books know. What cannot be told is unknown: neither nobody's, nor zero, nor divided among those
who are there (gpu mechanics 1.4, 1.6, 2 and rules 7 to 14).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuspawner.domain.devices import Device, DeviceUUID, HostInventory, Mode, ProcessUse
from gpuspawner.domain.leases import Lease
from gpuspawner.domain.uses import (
    Attribution,
    ForeignProcess,
    OwnProcess,
    UnitUse,
    Use,
    most_of,
    sum_of,
)

_MPS_SERVER = "nvidia-cuda-mps"  # as much of its name as the kernel keeps
_PART_OF_AN_INSTANCE = re.compile(r"\d+c\.")  # how the driver names a compute instance's profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What the kernel says of a process.

    Attributes:
        pid: the host's number for it.
        started: ticks from the boot to its start: with the number it names a process for good.
        container_ids: 64-digit names in its control group, the outermost first; only some of them
            need be containers.
        command: the name of its program, cut to 15 characters.
        kernel_id: the notebook's kernel that it is, or that started it.
    """

    pid: int
    started: int
    container_ids: tuple[str, ...] = ()
    command: str = ""
    kernel_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """Another container of the host. ``tolerated``: its operator says that it may use any GPU."""

    name: str
    tolerated: bool = False


@dataclass(frozen=True, slots=True)
class _Unit:
    """A device that is not partitioned, or an instance."""

    uuid: DeviceUUID
    used_mib: int | None
    busy_percent: int | None
    processes: tuple[ProcessUse, ...] | None
    is_part: bool = False  # its figure of used memory is that of several compute instances


@dataclass(slots=True)
class _Sorted:
    """The processes of one unit by whose they are."""

    own: dict[int, list[OwnProcess]] = field(default_factory=dict)
    foreign: list[ForeignProcess] = field(default_factory=list)
    overhead: list[ProcessUse] = field(default_factory=list)
    untold: list[ProcessUse] = field(default_factory=list)  # ended, or cannot be traced
    hides_clients: bool = False


def attribute(
    inventory: HostInventory,
    origins: Mapping[int, Origin],
    leases: Iterable[Lease],
    containers: Mapping[str, Neighbour],
    *,
    unavailable: str | None = None,
) -> Attribution:
    """Say whose every process is that an inventory lists.

    Args:
        inventory: one look at a host.
        origins: what the kernel says of its processes; one that ended meanwhile is not there.
        leases: the living ones; those that hold nothing on this host do no harm.
        containers: the other containers of the host by id.
        unavailable: why nothing can be told of processes here; None if it can. A list that is
            empty then says nothing either: a driver shows to whom is in a container of its own
            only what runs there.
    """
    tenants = {lease.run_id: lease for lease in leases if lease.run_id}
    uses: list[Use] = []
    units: list[UnitUse] = []
    for unit in _units(inventory.devices):
        here = [each for each in tenants.values() if _holds(each, unit.uuid)]
        if unit.processes is None or unavailable:
            uses += [_unknown_use(lease.lease_id, unit.uuid) for lease in here]
            units.append(UnitUse(uuid=unit.uuid, used_mib=unit.used_mib))
            continue
        found = _sort(unit, unit.processes, origins, here, tenants, containers)
        shared = _accounted(unit, found)
        units.append(shared)
        uses += [_use(lease, unit, found, shared) for lease in here]
    return Attribution(
        host_id=inventory.host_id,
        observed_at=inventory.observed_at,
        uses=tuple(uses),
        units=tuple(units),
        unavailable=unavailable,
    )


def _units(devices: Sequence[Device]) -> Iterable[_Unit]:
    for device in devices:
        if not device.partitioned:
            load = device.load
            yield _Unit(device.uuid, load.used_mib, load.busy_percent, device.processes)
        for instance in device.instances:
            part = _PART_OF_AN_INSTANCE.match(instance.profile) is not None
            yield _Unit(
                instance.uuid, instance.used_mib, instance.busy_percent, instance.processes, part
            )  # fmt: skip


def _holds(lease: Lease, uuid: DeviceUUID) -> bool:
    return any(item.uuid == uuid for item in lease.slices)


def _sort(
    unit: _Unit,
    processes: Sequence[ProcessUse],
    origins: Mapping[int, Origin],
    here: Sequence[Lease],
    tenants: Mapping[str, Lease],
    containers: Mapping[str, Neighbour],
) -> _Sorted:
    found = _Sorted()
    # A name is anybody's to choose, so it says something only where a server is to be expected.
    serves = any(
        item.mode is Mode.MPS for lease in here for item in lease.slices if item.uuid == unit.uuid
    )
    clients = False
    for process in processes:
        clients = clients or process.mps_client
        origin = origins.get(process.pid)
        if origin is None:
            found.untold.append(process)
            continue
        known = next((x for x in origin.container_ids if x in tenants or x in containers), None)
        if serves and known is None and origin.command.startswith(_MPS_SERVER):
            found.overhead.append(process)
        else:
            _file(unit, process, origin, known, tenants, containers, found)
    # Then the driver lists the server in its clients' place (gpu mechanics 2.5).
    found.hides_clients = bool(found.overhead) and not clients
    return found


def _file(
    unit: _Unit,
    process: ProcessUse,
    origin: Origin,
    known: str | None,
    tenants: Mapping[str, Lease],
    containers: Mapping[str, Neighbour],
    found: _Sorted,
) -> None:
    """File a process by ``known``, the outermost container around it that is known.

    The outermost: what a tenant runs in containers of its own is the tenant's.
    """
    lease = tenants.get(known) if known is not None else None
    if lease is not None and _holds(lease, unit.uuid):
        own = OwnProcess(
            pid=process.pid, memory_mib=process.memory_mib, busy_percent=process.busy_percent,
            command=origin.command, kernel_id=origin.kernel_id,
        )  # fmt: skip
        found.own.setdefault(lease.lease_id, []).append(own)
        return
    neighbour = containers.get(known or "")
    name = origin.container_ids[0][:12] if origin.container_ids else None
    found.foreign.append(
        ForeignProcess(
            pid=process.pid, memory_mib=process.memory_mib, command=origin.command,
            container=name if neighbour is None else neighbour.name,
            tolerated=neighbour is not None and neighbour.tolerated,
        )
    )  # fmt: skip


def _accounted(unit: _Unit, found: _Sorted) -> UnitUse:
    own = sum_of(each.memory_mib for processes in found.own.values() for each in processes)
    foreign = sum_of(each.memory_mib for each in found.foreign)
    overhead = sum_of(each.memory_mib for each in found.overhead)
    untold = sum_of(each.memory_mib for each in found.untold)
    told = sum_of((own, foreign, overhead, untold))
    is_known = told is not None and unit.used_mib is not None and not unit.is_part
    return UnitUse(
        uuid=unit.uuid, used_mib=unit.used_mib, leases_mib=own, foreign_mib=foreign,
        overhead_mib=overhead, untold_mib=untold,
        other_mib=max((unit.used_mib or 0) - (told or 0), 0) if is_known else None,
        foreign=tuple(found.foreign),
    )  # fmt: skip


def _use(lease: Lease, unit: _Unit, found: _Sorted, shared: UnitUse) -> Use:
    if found.hides_clients:
        return _unknown_use(lease.lease_id, unit.uuid)
    own = found.own.get(lease.lease_id, [])
    if found.untold and not own:
        # One that ended may have been its only one: in the next look it is there no more.
        return _unknown_use(lease.lease_id, unit.uuid)
    memory_mib = sum_of(each.memory_mib for each in own)
    busy_percent = most_of(each.busy_percent for each in own)
    is_alone = any(item.uuid == unit.uuid and not item.mode.is_share for item in lease.slices)
    if is_alone and own:
        memory_mib = _all_but_foreign(unit, shared, memory_mib)
        if busy_percent is None and not found.foreign:
            busy_percent = unit.busy_percent
    return Use(
        lease_id=lease.lease_id, uuid=unit.uuid, memory_mib=memory_mib,
        busy_percent=busy_percent, processes=tuple(own),
    )  # fmt: skip


def _all_but_foreign(unit: _Unit, shared: UnitUse, own_mib: int | None) -> int | None:
    """Return what the one tenant of a unit uses: managed memory stands in no process's figure."""
    rest = sum_of((shared.foreign_mib, shared.overhead_mib, shared.untold_mib))
    if unit.used_mib is None or rest is None or unit.is_part:
        return own_mib
    return max(unit.used_mib - rest, own_mib or 0)


def _unknown_use(lease_id: int, uuid: DeviceUUID) -> Use:
    return Use(lease_id=lease_id, uuid=uuid, memory_mib=None, busy_percent=None)
