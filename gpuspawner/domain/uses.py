"""Uses: what the leases of a host have of its devices, as one look at it showed.

A reading that is None is unknown, and never 0.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from gpuspawner.domain.devices import DeviceUUID, HostId
from gpuspawner.domain.leases import HOLDING, Lease
from gpuspawner.domain.pool import FRESH_FOR


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnProcess:
    """One process of a lease on one device or instance."""

    pid: int
    memory_mib: int | None
    busy_percent: int | None
    command: str = ""
    kernel_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignProcess:
    """A process that belongs to no lease of the device that it is on.

    ``container`` is the name, or the beginning of the id, of the container that it runs in.
    ``tolerated``: that may use any GPU.
    """

    pid: int
    memory_mib: int | None
    command: str = ""
    container: str | None = None
    tolerated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What one lease has of one device or instance; a reading that is None is unknown."""

    lease_id: int
    uuid: DeviceUUID
    memory_mib: int | None
    busy_percent: int | None
    processes: tuple[OwnProcess, ...] | None = None  # None: they could not be listed


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitUse:
    """How the memory of one device or instance adds up.

    ``leases_mib + foreign_mib + overhead_mib + untold_mib + other_mib`` is what is used, beside the
    driver's reserve: ``overhead_mib`` is of servers that serve several people, ``untold_mib`` of
    processes of which the kernel says nothing, ``other_mib`` what no process accounts for. The
    lists and the total are read one after the other, so that the parts may come out as more than
    the total; ``other_mib`` is 0 then.
    """

    uuid: DeviceUUID
    used_mib: int | None
    leases_mib: int | None = None
    foreign_mib: int | None = None
    overhead_mib: int | None = None
    untold_mib: int | None = None
    other_mib: int | None = None
    foreign: tuple[ForeignProcess, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """What runs on a host and whose it is, at one moment.

    ``unavailable`` says why it cannot be told here whose a process is; None is that it can.
    """

    host_id: HostId
    observed_at: datetime
    uses: tuple[Use, ...] = ()
    units: tuple[UnitUse, ...] = ()
    unavailable: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseUse:
    """What a lease has of all its devices together; a reading that is None is unknown."""

    observed_at: datetime
    memory_mib: int | None
    busy_percent: int | None
    processes: tuple[OwnProcess, ...] | None


def fresh_uses(
    attributions: Mapping[HostId, Attribution], now: datetime
) -> dict[tuple[int, DeviceUUID], Use]:
    """Return what is known now of each lease on each device or instance.

    Of one that two hosts report, since theirs was given another name, what was seen last.
    """
    return {key: use for key, (use, _) in _fresh(attributions, now).items()}


def uses_of(
    leases: Iterable[Lease], attributions: Mapping[HostId, Attribution], now: datetime
) -> dict[int, LeaseUse]:
    """Return what each lease has of its devices; of those that are left out nothing is known."""
    fresh = _fresh(attributions, now)
    found = {lease.lease_id: _use_of(lease, fresh) for lease in leases}
    return {lease_id: use for lease_id, use in found.items() if use is not None}


def _fresh(
    attributions: Mapping[HostId, Attribution], now: datetime
) -> dict[tuple[int, DeviceUUID], tuple[Use, datetime]]:
    return {
        (use.lease_id, use.uuid): (use, attribution.observed_at)
        for attribution in sorted(attributions.values(), key=lambda each: each.observed_at)
        if now - attribution.observed_at <= FRESH_FOR
        for use in attribution.uses
    }


def _use_of(
    lease: Lease, fresh: Mapping[tuple[int, DeviceUUID], tuple[Use, datetime]]
) -> LeaseUse | None:
    keys = [(lease.lease_id, item.uuid) for item in lease.slices]
    if not keys or lease.state not in HOLDING or any(key not in fresh for key in keys):
        return None
    found = [fresh[key][0] for key in keys]
    lists = [use.processes for use in found]
    known = [each for each in lists if each is not None]
    return LeaseUse(
        observed_at=min(fresh[key][1] for key in keys),
        memory_mib=sum_of(use.memory_mib for use in found),
        busy_percent=most_of(use.busy_percent for use in found),
        processes=None if len(known) < len(lists) else tuple(x for each in known for x in each),
    )


def sum_of(values: Iterable[int | None]) -> int | None:
    """Add up; with one that is unknown the sum is."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def most_of(values: Iterable[int | None]) -> int | None:
    """Return the highest, 0 of none; with one that is unknown it is unknown."""
    most = 0
    for value in values:
        if value is None:
            return None
        most = max(most, value)
    return most
