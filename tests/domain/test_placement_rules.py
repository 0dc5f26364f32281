"""Placement in any site: what must be true of every answer."""

from collections import defaultdict
from dataclasses import replace
from random import Random

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from gpuspawner.domain.devices import HostInventory, Mode
from gpuspawner.domain.placement import availability, explain, place
from gpuspawner.domain.policy import PlacementPolicy, Policy
from gpuspawner.domain.pool import Pool
from gpuspawner.domain.profiles import CPU_ONLY, Profile
from gpuspawner.domain.reasons import Code, Kind
from gpuspawner.domain.slices import Hold, Slice
from tests import strategies
from tests.builders import T0, after

Site = tuple[Policy, tuple[HostInventory, ...], dict[str, str]]


@st.composite
def sites(draw: st.DrawFn) -> Site:
    """A policy, what is there, and what is cordoned."""
    hosts = draw(strategies.sites())
    return draw(strategies.policies()), hosts, draw(strategies.cordons(hosts))


def pool_of(site: Site, holds: list[Hold]) -> Pool:
    policy, hosts, cordons = site
    return Pool(policy, hosts, cordons, holds, now=T0)


def hold_all(pool: Pool, lease_id: int, profile: Profile) -> tuple[Slice, ...] | None:
    """Place a profile and enter what it gets, as a settlement does."""
    slices = place(pool, profile)
    for item in slices or ():
        pool.add(Hold(lease_id=lease_id, slice=item, group=profile.share_group))
    return slices


@st.composite
def used_pools(draw: st.DrawFn) -> tuple[Site, list[Hold]]:
    """A site where some people have slices already."""
    site = draw(sites())
    pool = pool_of(site, [])
    for lease_id, profile in enumerate(draw(st.lists(strategies.placed_profiles(), max_size=6))):
        hold_all(pool, lease_id, profile)
    return site, [hold for item in pool.devices.values() for hold in item.holds.values()]


def check_slice(pool: Pool, profile: Profile, item: Slice) -> None:
    """Check one chosen slice against the raw facts, without the pool's own verdicts."""
    pooled = pool.devices[item.device_uuid]
    device = pooled.device
    assert pooled.unavailable is None
    assert item.unit not in pooled.holds
    assert item.mode is profile.mode
    assert item.mode in pooled.rule.modes
    assert device.partitioned is (item.mode is Mode.INSTANCE)
    assert (item.host_id, item.model) == (device.host_id, device.model)
    assert profile.fits_model(device.model)
    if item.mode is Mode.WHOLE:
        assert not pooled.holds
        assert (item.unit, item.uuid, item.memory_mib) == ("whole", device.uuid, device.memory_mib)
        assert (device.memory_mib or 0) >= (profile.memory_mib or 0)
    elif item.mode is Mode.INSTANCE:
        (instance,) = (each for each in device.instances if each.uuid == item.uuid)
        assert instance.uuid not in pooled.unavailable_units
        assert (item.memory_mib, item.instance_profile) == (instance.memory_mib, instance.profile)
        assert profile.instance in (None, instance.profile)
        assert (instance.memory_mib or 0) >= (profile.memory_mib or 0)
    else:
        assert pooled.simulated
        assert pooled.fresh
        assert item.memory_mib == profile.memory_mib
        assert {hold.slice.mode for hold in pooled.holds.values()} <= {item.mode}
        assert {hold.group for hold in pooled.holds.values()} <= {profile.share_group}
        promised = sum(hold.slice.memory_mib or 0 for hold in pooled.holds.values())
        assert device.memory_mib is not None
        assert promised + profile.memory_mib <= device.memory_mib - pooled.rule.headroom_mib


@pytest.mark.proves("P1")
@given(used_pools(), strategies.placed_profiles())
def test_every_chosen_slice_is_free_fits_and_may_be_handed_out(
    used: tuple[Site, list[Hold]], profile: Profile
) -> None:
    pool = pool_of(*used)
    slices = place(pool, profile)
    if slices is None:
        return
    assert len(slices) == profile.count
    assert len({item.slice_id for item in slices}) == profile.count
    assert len({(item.host_id, item.model) for item in slices}) == 1
    for item in slices:
        check_slice(pool, profile, item)


@pytest.mark.proves("P1")
@given(sites(), st.lists(strategies.placed_profiles(), max_size=12))
def test_no_unit_is_ever_held_twice_and_modes_and_groups_never_mix(
    site: Site, profiles: list[Profile]
) -> None:
    pool = pool_of(site, [])
    given_out: list[Slice] = []
    for lease_id, profile in enumerate(profiles):
        given_out += hold_all(pool, lease_id, profile) or ()
    units = [(item.device_uuid, item.unit) for item in given_out]
    assert len(set(units)) == len(units)
    by_device: dict[str, list[Hold]] = defaultdict(list)
    for item in pool.devices.values():
        by_device[item.device.uuid] = list(item.holds.values())
    for holds in by_device.values():
        assert len({hold.slice.mode for hold in holds}) <= 1
        assert len({hold.group for hold in holds if hold.slice.mode.is_share}) <= 1
        assert sum(hold.slice.mode is Mode.WHOLE for hold in holds) <= 1


@pytest.mark.proves("P8")
@given(used_pools(), strategies.placed_profiles())
def test_free_is_how_often_it_can_be_granted_before_nothing_is_left(
    used: tuple[Site, list[Hold]], profile: Profile
) -> None:
    pool = pool_of(*used)
    before = availability(pool, profile)
    granted = 0
    while hold_all(pool, 1000 + granted, profile) is not None:
        granted += 1
    assert granted == before.free
    then = availability(pool, profile)
    assert then.free == 0
    assert (then.total, then.unavailable) == (before.total, before.unavailable)


@given(used_pools(), strategies.placed_profiles())
def test_free_in_use_and_unavailable_add_up(
    used: tuple[Site, list[Hold]], profile: Profile
) -> None:
    counted = availability(pool_of(*used), profile)
    assert min(counted.free, counted.in_use, counted.unavailable) >= 0
    assert counted.free + counted.in_use + counted.unavailable == counted.total
    if counted.unproven:
        assert counted.total == 0


@given(used_pools(), strategies.placed_profiles(), st.randoms(use_true_random=False))
def test_the_order_of_the_facts_does_not_matter(
    used: tuple[Site, list[Hold]], profile: Profile, random: Random
) -> None:
    (policy, hosts, cordons), holds = used
    shuffled = []
    for host in hosts:
        devices = [
            replace(item, instances=tuple(random.sample(item.instances, len(item.instances))))
            for item in host.devices
        ]
        random.shuffle(devices)
        shuffled.append(replace(host, devices=tuple(devices)))
    random.shuffle(shuffled)
    mixed = random.sample(holds, len(holds))
    first, second = (
        Pool(policy, hosts, cordons, holds, now=T0),
        Pool(policy, shuffled, cordons, mixed, now=T0),
    )
    assert place(first, profile) == place(second, profile)
    assert availability(first, profile) == availability(second, profile)
    assert explain(first, profile, [profile]) == explain(second, profile, [profile])


@given(used_pools(), strategies.placed_profiles())
def test_a_whole_device_is_the_best_of_the_free_ones_by_the_sites_measure(
    used: tuple[Site, list[Hold]], profile: Profile
) -> None:
    assume(profile.mode is Mode.WHOLE and profile.count == 1)
    pool = pool_of(*used)
    chosen = place(pool, profile)
    if chosen is None:
        return

    def free_mib(uuid: str) -> int:
        device = pool.devices[uuid].device
        return (device.memory_mib or 0) - (device.load.used_mib or 0)

    (item,) = chosen
    mine = pool.devices[item.device_uuid].device
    for other in pool.devices.values():
        fits = (other.device.memory_mib or 0) >= (profile.memory_mib or 0)
        if not (other.may_take(Mode.WHOLE) and fits and not other.holds and not other.unavailable):
            continue
        if not profile.fits_model(other.device.model):
            continue
        if mine.load.used_mib is None:
            assert other.device.load.used_mib is None  # unknown only where nothing is known
        elif other.device.load.used_mib is not None:
            more = free_mib(mine.uuid) - free_mib(other.device.uuid)
            packs = pool.policy.placement is PlacementPolicy.BINPACK
            assert (more <= 0) if packs else (more >= 0)


@pytest.mark.proves("P6", "P8")
@given(
    used_pools(),
    strategies.placed_profiles(),
    st.lists(strategies.placed_profiles() | st.just(CPU_ONLY), max_size=3),
)
def test_a_refusal_has_the_numbers_of_the_count_and_names_only_what_is_free(
    used: tuple[Site, list[Hold]], profile: Profile, others: list[Profile]
) -> None:
    pool = pool_of(*used)
    if place(pool, profile) is not None:
        return
    why = explain(pool, profile, others)
    counted = availability(pool, profile)
    if "alternatives" in why.values:
        assert why.values["alternatives"] == [
            other.title
            for other in others
            if other.name != profile.name and (other.mode is None or place(pool, other) is not None)
        ]
    match why.code:
        case Code.CAP_NOT_HELD:
            assert counted.unproven
        case Code.INVENTORY_AWAY:
            assert why.kind is Kind.AWAY
            assert why.values["since"] == counted.silent_since.isoformat()  # type: ignore[union-attr]
        case Code.NOTHING_FITS:
            assert counted.total == 0
            assert why.values["devices"] == len(pool.devices)
        case code:
            assert code is Code.ALL_IN_USE
            assert why.values["total"] == counted.total > 0
            assert why.values["in_use"] + why.values["unavailable"] == counted.total


@given(used_pools())
@example(((Policy(), (), {}), []))
def test_what_the_pool_says_is_free_whole_is_what_the_facts_say(
    used: tuple[Site, list[Hold]],
) -> None:
    pool = pool_of(*used)
    assert {item.device.uuid for item in pool.free_whole()} == {
        uuid
        for uuid, item in pool.devices.items()
        if item.may_take(Mode.WHOLE) and not item.holds and item.unavailable is None
    }
    assert {each.uuid for _, each in pool.instances(None, free=True)} == {
        each.uuid for item, each in pool.instances(None) if item.is_free_instance(each)
    }


@given(used_pools(), st.data())
def test_a_pool_brought_up_to_date_is_the_pool_built_anew(
    used: tuple[Site, list[Hold]], data: st.DataObject
) -> None:
    site, holds = used
    pool = pool_of(site, holds)
    kept = [hold for hold in holds if data.draw(st.booleans())]
    for hold in holds:
        if hold not in kept:
            pool.remove(hold)
    if data.draw(st.booleans()):
        for hold in holds:
            if hold not in kept:
                pool.add(hold)
        kept = holds
    now = after(data.draw(st.sampled_from((0, 30))))
    pool.move_to(now)
    policy, hosts, cordons = site
    anew = Pool(policy, hosts, cordons, kept, now=now)
    assert pool.entered.keys() == anew.entered.keys()
    for profile in data.draw(st.lists(strategies.placed_profiles(), min_size=1, max_size=3)):
        assert availability(pool, profile) == availability(anew, profile)
        assert place(pool, profile) == place(anew, profile)
