"""Settlement: in order, nothing twice, refusals only for those who may not wait."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.domain.placement import explain, place
from gpuspawner.domain.pool import Pool
from gpuspawner.domain.profiles import CPU_ONLY, Profile
from gpuspawner.domain.reasons import Code
from gpuspawner.domain.settlement import Grant, Refusal, Waiter, settle
from gpuspawner.domain.slices import Hold
from tests import strategies
from tests.builders import (
    ML_SHARE,
    PAIR,
    T0,
    VIS_SHARE,
    WHOLE,
    device,
    inventory,
    sharing_policy,
)
from tests.domain.test_placement_rules import Site, hold_all, pool_of, sites


def lab(*names: str) -> Pool:
    return Pool(sharing_policy(), [inventory(*map(device, names))], now=T0)


def waiters(*profiles: Profile, may_wait: bool = True) -> list[Waiter]:
    return [
        Waiter(lease_id=at, profile=profile, may_wait=may_wait)
        for at, profile in enumerate(profiles, start=1)
    ]


def test_nobody_waiting_decides_nothing() -> None:
    assert settle(lab("a"), []) == []


def test_the_first_come_gets_it_and_the_second_waits() -> None:
    pool = lab("a")
    (grant,) = settle(pool, waiters(WHOLE, WHOLE))
    assert isinstance(grant, Grant)
    assert grant.lease_id == 1
    assert [item.slice_id for item in grant.slices] == ["GPU-a"]
    assert set(pool.devices["GPU-a"].holds) == {"whole"}


def test_who_may_not_wait_is_told_what_would_work() -> None:
    claim = Waiter(lease_id=2, profile=WHOLE, may_wait=False, alternatives=(CPU_ONLY, WHOLE))
    _, refusal = settle(lab("a"), [*waiters(WHOLE), claim])
    assert isinstance(refusal, Refusal)
    assert (refusal.lease_id, refusal.reason.code) == (2, Code.ALL_IN_USE)
    assert refusal.reason.values["alternatives"] == ["CPU only"]


def test_a_grant_names_the_group_that_shares_the_device() -> None:
    decisions = settle(lab("a"), waiters(ML_SHARE, VIS_SHARE, ML_SHARE))
    assert [(each.lease_id, each.group) for each in decisions] == [(1, "ml101"), (3, "ml101")]  # type: ignore[union-attr]


def test_two_devices_are_never_given_by_halves() -> None:
    pool = lab("a", "b", "c")
    decisions = settle(pool, waiters(PAIR, PAIR))
    assert [each.lease_id for each in decisions] == [1]
    assert len(pool.devices) - len(list(pool.free_whole())) == 2


@st.composite
def queues(draw: st.DrawFn) -> list[Waiter]:
    """Some waiters, several with the same profile."""
    kinds = draw(st.lists(strategies.placed_profiles(), min_size=1, max_size=4))
    picks = draw(st.lists(st.tuples(st.sampled_from(kinds), st.booleans()), max_size=10))
    return [
        Waiter(lease_id=at, profile=profile, may_wait=may_wait, alternatives=tuple(kinds))
        for at, (profile, may_wait) in enumerate(picks)
    ]


def naive(pool: Pool, queue: list[Waiter]) -> list[Grant | Refusal]:
    """Decide like `settle`, but look afresh for everybody."""
    decisions: list[Grant | Refusal] = []
    for waiter in queue:
        slices = place(pool, waiter.profile)
        if slices is None:
            if not waiter.may_wait:
                why = explain(pool, waiter.profile, waiter.alternatives)
                decisions.append(Refusal(lease_id=waiter.lease_id, reason=why))
            continue
        group = waiter.profile.share_group
        for item in slices:
            pool.add(Hold(lease_id=waiter.lease_id, slice=item, group=group))
        seconds = waiter.start_seconds
        number = waiter.lease_id
        decisions.append(Grant(lease_id=number, slices=slices, group=group, start_seconds=seconds))
    return decisions


@pytest.mark.proves("P8")
@given(sites(), queues())
def test_the_shortcut_decides_as_looking_afresh_for_everybody_does(
    site: Site, queue: list[Waiter]
) -> None:
    assert settle(pool_of(site, []), queue) == naive(pool_of(site, []), queue)


@given(sites(), st.lists(strategies.placed_profiles(), max_size=4), queues())
def test_decisions_keep_the_order_and_give_nothing_twice(
    site: Site, present: list[Profile], queue: list[Waiter]
) -> None:
    pool = pool_of(site, [])
    for at, profile in enumerate(present):
        hold_all(pool, 1000 + at, profile)
    held = {(item.device.uuid, unit) for item in pool.devices.values() for unit in item.holds}
    decisions = settle(pool, queue)
    places = [waiter.lease_id for waiter in queue]
    order = [places.index(each.lease_id) for each in decisions]
    assert order == sorted(set(order))
    by_id = {waiter.lease_id: waiter for waiter in queue}
    for each in decisions:
        if isinstance(each, Refusal):
            assert not by_id[each.lease_id].may_wait
            continue
        assert each.group == by_id[each.lease_id].profile.share_group
        for item in each.slices:
            assert (item.device_uuid, item.unit) not in held
            held.add((item.device_uuid, item.unit))
    decided = {each.lease_id for each in decisions}
    assert all(waiter.may_wait or waiter.lease_id in decided for waiter in queue)
