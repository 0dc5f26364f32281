"""Placement: which slices a profile gets, as filter, score, select over one view of the pool.

The same input gives the same answer: ties are broken by host and UUID. The answer is slices or a
reason that names the numbers.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuspawner.domain.devices import Instance, Mode
from gpuspawner.domain.pool import PlacementPolicy, Pool, PooledDevice
from gpuspawner.domain.profiles import Profile
from gpuspawner.domain.reasons import Code, Reason, reason
from gpuspawner.domain.slices import Slice

Score = tuple[int, int, int, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """How many grants of a profile are possible now, and how many there could ever be.

    ``unavailable`` counts grants lost to trouble or cordons; ``unproven`` is True when the only
    devices that fit are real ones on which a share's memory cap is not held by anything yet.
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
    policy = pool.policy.placement
    if profile.count == 1:
        free = [item for item in _whole_fitting(pool, profile) if _is_free_whole(item)]
        return (_whole_slice(min(free, key=lambda item: _score(policy, item))),) if free else None
    teams: dict[tuple[str, str], list[PooledDevice]] = defaultdict(list)
    for item in _whole_fitting(pool, profile):
        if _is_free_whole(item):
            teams[item.device.host_id, item.device.model].append(item)
    best: tuple[list[Score], list[PooledDevice]] | None = None
    for team in teams.values():
        if len(team) < profile.count:
            continue
        scored = sorted((_score(policy, item), item.device.uuid, item) for item in team)
        picked = scored[: profile.count]
        candidate = ([score for score, _, _ in picked], [item for _, _, item in picked])
        if best is None or candidate[0] < best[0]:
            best = candidate
    return tuple(_whole_slice(item) for item in best[1]) if best else None


def _place_instance(pool: Pool, profile: Profile) -> tuple[Slice, ...] | None:
    free = [
        (item, instance)
        for item, instance in _instances_fitting(pool, profile)
        if _is_free_instance(item, instance)
    ]
    if not free:
        return None
    policy = pool.policy.placement
    scores: dict[str, Score] = {}
    for item, _ in free:
        if item.device.uuid not in scores:
            scores[item.device.uuid] = _score(policy, item)
    item, instance = min(
        free,
        key=lambda pair: (pair[1].memory_mib or 0, scores[pair[0].device.uuid], pair[1].uuid),
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
    free = [
        item
        for item in _share_fitting(pool, profile)
        if item.simulated and item.fresh and _shares_left(item, profile) > 0
    ]
    if not free:
        return None
    policy = pool.policy.placement
    item = min(free, key=lambda each: _score(policy, each))
    assert profile.mode is not None
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


def _score(policy: PlacementPolicy, item: PooledDevice) -> Score:
    """Order devices, best first. An unknown load counts as the highest: unknown is not idle."""
    capacity = item.device.memory_mib or 0
    free = capacity - max(item.promised_mib, item.device.load.used_mib or 0)
    busy = 101 if item.device.load.busy_percent is None else item.device.load.busy_percent
    tenants = len(item.holds)
    if policy is PlacementPolicy.BINPACK:
        return (free, busy, -tenants, item.device.host_id, item.device.uuid)
    if policy is PlacementPolicy.SPREAD:
        return (tenants, -free, busy, item.device.host_id, item.device.uuid)
    return (-free, busy, tenants, item.device.host_id, item.device.uuid)


def _whole_fitting(pool: Pool, profile: Profile) -> Iterable[PooledDevice]:
    wanted = profile.memory_mib or 0
    for item in pool.for_mode(Mode.WHOLE):
        if (item.device.memory_mib or 0) >= wanted and profile.fits_model(item.device.model):
            yield item


def _instances_fitting(pool: Pool, profile: Profile) -> Iterable[tuple[PooledDevice, Instance]]:
    wanted = profile.memory_mib or 0
    for item, instance in pool.instances(profile.instance):
        if (instance.memory_mib or 0) >= wanted and profile.fits_model(item.device.model):
            yield item, instance


def _share_fitting(pool: Pool, profile: Profile) -> Iterable[PooledDevice]:
    assert profile.mode is not None
    wanted = profile.memory_mib or 0
    for item in pool.for_mode(profile.mode):
        if (item.capacity_mib or 0) >= wanted > 0 and profile.fits_model(item.device.model):
            yield item


def _is_free_whole(item: PooledDevice) -> bool:
    return not item.holds and item.unavailable is None


def _is_free_instance(item: PooledDevice, instance: Instance) -> bool:
    return (
        instance.uuid not in item.holds
        and item.unavailable is None
        and instance.uuid not in item.unavailable_units
    )


def _shares_left(item: PooledDevice, profile: Profile) -> int:
    """How many more shares of this size the device has room for, for this profile's group."""
    if item.unavailable is not None or not profile.memory_mib or item.capacity_mib is None:
        return 0
    if item.holds and (
        item.held_mode is not profile.mode or item.held_group != profile.share_group
    ):
        return 0
    return max(item.capacity_mib - item.promised_mib, 0) // profile.memory_mib


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
    for item in _whole_fitting(pool, profile):
        teams[item.device.host_id, item.device.model].append(item)
    count = profile.count
    total = sum(len(team) // count for team in teams.values())
    usable = sum(sum(i.unavailable is None for i in team) // count for team in teams.values())
    free = sum(sum(map(_is_free_whole, team)) // count for team in teams.values())
    return Availability(free=free, total=total, unavailable=total - usable)


def _count_instances(pool: Pool, profile: Profile) -> Availability:
    pairs = list(_instances_fitting(pool, profile))
    unusable = sum(
        item.unavailable is not None or instance.uuid in item.unavailable_units
        for item, instance in pairs
    )
    free = sum(_is_free_instance(item, instance) for item, instance in pairs)
    return Availability(free=free, total=len(pairs), unavailable=unusable)


def _count_shares(pool: Pool, profile: Profile) -> Availability:
    fitting = list(_share_fitting(pool, profile))
    held = [item for item in fitting if item.simulated]
    size = profile.memory_mib or 1
    free = sum(_shares_left(item, profile) for item in held if item.fresh)
    silent = [item.observed_at for item in held if not item.fresh]
    return Availability(
        free=free,
        total=_shares_in_all(held, size),
        unavailable=_shares_in_all([i for i in held if i.unavailable is not None], size),
        unproven=bool(fitting) and not held,
        silent_since=max(silent) if silent and not free else None,
    )


def _shares_in_all(items: Sequence[PooledDevice], size_mib: int) -> int:
    return sum((item.capacity_mib or 0) // size_mib for item in items)
