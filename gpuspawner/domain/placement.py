"""Placement: which slices a profile gets, as filter, score, select over one view of the pool.

The same input gives the same answer: ties are broken by host and UUID. The answer is slices or a
reason that names the numbers.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuspawner.domain.devices import DeviceUUID, Instance, Mode
from gpuspawner.domain.policy import PlacementPolicy
from gpuspawner.domain.pool import Pool, PooledDevice
from gpuspawner.domain.profiles import Profile
from gpuspawner.domain.reasons import Code, Reason, reason
from gpuspawner.domain.slices import Slice

Score = tuple[int | str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """How many grants of a profile are possible now, and how many there could ever be.

    ``unavailable`` counts grants lost to trouble, cordons or silence; ``unproven`` is True when
    the only devices that fit are real ones, where nothing holds a share's memory cap yet.
    ``silent_since`` is set when nothing is free because the agent that watches shares is silent.
    """

    free: int
    total: int
    unavailable: int = 0
    unproven: bool = False
    silent_since: datetime | None = None

    @property
    def in_use(self) -> int:
        """Grants that others have now."""
        return max(self.total - self.free - self.unavailable, 0)


def place(pool: Pool, profile: Profile) -> tuple[Slice, ...] | None:
    """Choose slices for a profile, or None when nothing is free; `explain` says why.

    Raises:
        ValueError: the profile has no mode; a server without GPU has no lease.
    """
    if profile.mode is None:
        raise ValueError(f"profile {profile.name!r} is without GPU and is never placed")
    if profile.mode is Mode.WHOLE:
        return _place_whole(pool, profile)
    if profile.mode is Mode.INSTANCE:
        return _place_instance(pool, profile)
    return _place_share(pool, profile)


def availability(pool: Pool, profile: Profile) -> Availability:
    """Count what is free of a profile now and what there is in all."""
    if profile.mode is None:
        return Availability(free=0, total=0)
    if profile.mode is Mode.WHOLE:
        return _count_whole(pool, profile)
    if profile.mode is Mode.INSTANCE:
        return _count_instances(pool, profile)
    return _count_shares(pool, profile)


def explain(pool: Pool, profile: Profile, alternatives: Iterable[Profile] = ()) -> Reason:
    """Say why `place` found nothing: the rule, the numbers, and which other profiles would work."""
    counted = availability(pool, profile)
    titles = [
        other.title
        for other in alternatives
        if other.name != profile.name and (other.mode is None or availability(pool, other).free > 0)
    ]
    if counted.unproven:
        return reason(Code.CAP_NOT_HELD, profile=profile.title, alternatives=titles)
    if counted.silent_since is not None:
        return reason(Code.INVENTORY_AWAY, since=counted.silent_since.isoformat())
    if counted.total == 0:
        return reason(
            Code.NOTHING_FITS,
            profile=profile.title,
            devices=len(pool.devices),
            alternatives=titles,
        )
    return reason(
        Code.ALL_IN_USE,
        profile=profile.title,
        total=counted.total,
        in_use=counted.in_use,
        unavailable=counted.unavailable,
        alternatives=titles,
    )


def _place_whole(pool: Pool, profile: Profile) -> tuple[Slice, ...] | None:
    free = [item for item in pool.free_whole() if _fits_whole(item, profile)]
    if profile.count == 1:
        return (_whole_slice(_best(pool, free)),) if free else None
    teams: dict[tuple[str, str], list[PooledDevice]] = defaultdict(list)
    for item in free:
        teams[item.device.host_id, item.device.model].append(item)
    best: list[tuple[Score, DeviceUUID, PooledDevice]] | None = None
    for team in teams.values():
        if len(team) < profile.count:
            continue
        scored = sorted((_score(pool, item), item.device.uuid, item) for item in team)
        picked = scored[: profile.count]
        if best is None or picked < best:
            best = picked
    return None if best is None else tuple(_whole_slice(item) for _, _, item in best)


def _place_instance(pool: Pool, profile: Profile) -> tuple[Slice, ...] | None:
    free = list(_instances_fitting(pool, profile, free=True))
    if not free:
        return None
    # The smallest that fits; an unknown size is never taken for a small one.
    item, instance = min(
        free,
        key=lambda pair: (
            pair[1].memory_mib is None,
            pair[1].memory_mib or 0,
            pair[0].rank or _score(pool, pair[0]),
            pair[1].uuid,
        ),
    )
    return (
        Slice(
            host_id=item.device.host_id,
            device_uuid=item.device.uuid,
            mode=Mode.INSTANCE,
            unit=str(instance.uuid),
            memory_mib=instance.memory_mib,
            instance_profile=instance.profile,
            model=item.device.model,
        ),
    )


def _place_share(pool: Pool, profile: Profile) -> tuple[Slice, ...] | None:
    assert profile.mode is not None
    size, group = profile.memory_mib or 0, profile.share_group
    free = [
        item
        for item in pool.for_mode(profile.mode)
        if item.room_mib >= size > 0
        and _is_share_usable(item)
        and item.may_join(profile.mode, group)
        and profile.fits_model(item.device.model)
    ]
    if not free:
        return None
    item = _best(pool, free)
    return (
        Slice(
            host_id=item.device.host_id,
            device_uuid=item.device.uuid,
            mode=profile.mode,
            unit=f"share-{_lowest_free_ordinal(item)}",
            memory_mib=profile.memory_mib,
            compute_percent=profile.compute_percent,
            model=item.device.model,
        ),
    )


def _best(pool: Pool, items: Iterable[PooledDevice]) -> PooledDevice:
    return min(items, key=lambda item: item.rank or _score(pool, item))


def _score(pool: Pool, item: PooledDevice) -> Score:
    """Order devices, best first. An unknown load comes after every known one: it is not idle."""
    if item.rank is not None:
        return item.rank
    load, policy = item.device.load, pool.policy.placement
    free = (item.device.memory_mib or 0) - max(item.promised_mib, load.used_mib or 0)
    unknown = load.used_mib is None
    busy = 101 if load.busy_percent is None else load.busy_percent
    tenants = len(item.holds)
    name = (item.device.host_id, item.device.uuid)
    if policy is PlacementPolicy.BINPACK:
        item.rank = (unknown, free, busy, -tenants, *name)
    elif policy is PlacementPolicy.SPREAD:
        item.rank = (tenants, unknown, -free, busy, *name)
    else:
        item.rank = (unknown, -free, busy, tenants, *name)
    return item.rank


def _fits_whole(item: PooledDevice, profile: Profile) -> bool:
    return (item.device.memory_mib or 0) >= (profile.memory_mib or 0) and profile.fits_model(
        item.device.model
    )


def _instances_fitting(
    pool: Pool, profile: Profile, *, free: bool = False
) -> Iterable[tuple[PooledDevice, Instance]]:
    wanted = profile.memory_mib or 0
    for item, instance in pool.instances(profile.instance, free=free):
        if (instance.memory_mib or 0) >= wanted and profile.fits_model(item.device.model):
            yield item, instance


def _share_fitting(pool: Pool, profile: Profile) -> Iterable[PooledDevice]:
    assert profile.mode is not None
    wanted = profile.memory_mib or 0
    for item in pool.for_mode(profile.mode):
        if (item.capacity_mib or 0) >= wanted > 0 and profile.fits_model(item.device.model):
            yield item


def _is_share_usable(item: PooledDevice) -> bool:
    return item.caps_are_held and item.unavailable is None


def _shares_left(item: PooledDevice, profile: Profile) -> int:
    """How many more shares of this size the device has room for, for this profile's group."""
    assert profile.mode is not None
    if not profile.memory_mib or not item.may_join(profile.mode, profile.share_group):
        return 0
    return item.room_mib // profile.memory_mib


def _lowest_free_ordinal(item: PooledDevice) -> int:
    ordinal = 0
    while f"share-{ordinal}" in item.holds:
        ordinal += 1
    return ordinal


def _whole_slice(item: PooledDevice) -> Slice:
    return Slice(
        host_id=item.device.host_id,
        device_uuid=item.device.uuid,
        mode=Mode.WHOLE,
        unit="whole",
        memory_mib=item.device.memory_mib,
        model=item.device.model,
    )


def _count_whole(pool: Pool, profile: Profile) -> Availability:
    teams: dict[tuple[str, str], list[PooledDevice]] = defaultdict(list)
    for item in pool.for_mode(Mode.WHOLE):
        if _fits_whole(item, profile):
            teams[item.device.host_id, item.device.model].append(item)
    count = profile.count
    total = sum(len(team) // count for team in teams.values())
    usable = sum(sum(i.unavailable is None for i in team) // count for team in teams.values())
    free = sum(sum(item.is_free for item in team) // count for team in teams.values())
    return Availability(free=free, total=total, unavailable=total - usable)


def _count_instances(pool: Pool, profile: Profile) -> Availability:
    pairs = list(_instances_fitting(pool, profile))
    unusable = sum(
        item.unavailable is not None or instance.uuid in item.unavailable_units
        for item, instance in pairs
    )
    free = sum(item.is_free_instance(instance) for item, instance in pairs)
    return Availability(free=free, total=len(pairs), unavailable=unusable)


def _count_shares(pool: Pool, profile: Profile) -> Availability:
    fitting = list(_share_fitting(pool, profile))
    capped = [item for item in fitting if item.simulated]
    usable = [item for item in capped if _is_share_usable(item)]
    size = profile.memory_mib or 1
    free = sum(_shares_left(item, profile) for item in usable)
    total = _shares_in_all(capped, size)
    silent = [
        item.observed_at
        for item in capped
        if not item.fresh and item.unavailable is None and _shares_left(item, profile) > 0
    ]
    return Availability(
        free=free,
        total=total,
        unavailable=total - _shares_in_all(usable, size),
        unproven=bool(fitting) and not capped,
        silent_since=max(silent) if silent and not free else None,
    )


def _shares_in_all(items: Sequence[PooledDevice], size_mib: int) -> int:
    return sum((item.capacity_mib or 0) // size_mib for item in items)
