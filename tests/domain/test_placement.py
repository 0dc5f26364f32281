"""Placement in small labs: which slice is taken, and what a refusal says."""

from dataclasses import replace

import pytest

from gpuspawner.domain.devices import Load, Mode, Trouble, Unavailable
from gpuspawner.domain.placement import Availability, availability, explain, place
from gpuspawner.domain.policy import DeviceRule, PlacementPolicy, Policy
from gpuspawner.domain.pool import Pool
from gpuspawner.domain.profiles import CPU_ONLY, Profile
from gpuspawner.domain.reasons import Code
from tests.builders import (
    ANY_MIG,
    ML_SHARE,
    PAIR,
    SMALL_MIG,
    T0,
    VIS_SHARE,
    WHOLE,
    after,
    device,
    hold_of,
    inventory,
    mig_device,
    share_hold,
    sharing_policy,
)

SICK = Unavailable(trouble=Trouble.SICK, detail="XID 79")


def taken(pool: Pool, profile: Profile) -> list[str] | None:
    """Return the ids of the slices that a profile gets."""
    slices = place(pool, profile)
    return None if slices is None else [item.slice_id for item in slices]


def test_a_profile_without_gpu_is_never_placed() -> None:
    pool = Pool(sharing_policy(), [], now=T0)
    with pytest.raises(ValueError, match="'cpu' is without GPU"):
        place(pool, CPU_ONLY)
    assert availability(pool, CPU_ONLY) == Availability(free=0, total=0)


def test_the_slice_says_everything_that_an_engine_needs() -> None:
    pool = Pool(sharing_policy(), [inventory(device("a"), mig_device("m", 5))], now=T0)
    whole, instance, share = (place(pool, each)[0] for each in (WHOLE, ANY_MIG, ML_SHARE))  # type: ignore[index]
    assert (whole.uuid, whole.unit, whole.memory_mib) == ("GPU-a", "whole", 16384)
    assert (instance.uuid, instance.device_uuid) == ("MIG-m-0", "GPU-m")
    assert (instance.instance_profile, instance.memory_mib) == ("1g.5gb", 5120)
    assert (share.uuid, share.slice_id) == ("GPU-a", "GPU-a/share-0")
    assert (share.memory_mib, share.mode, share.model) == (4096, Mode.TIME_SLICED, "Tesla T4")


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (PlacementPolicy.LEAST_LOADED, "GPU-empty/share-0"),
        (PlacementPolicy.BINPACK, "GPU-full/share-2"),
        (PlacementPolicy.SPREAD, "GPU-empty/share-0"),
    ],
)
def test_the_site_chooses_between_emptiest_fullest_and_fewest(
    policy: PlacementPolicy, expected: str
) -> None:
    holds = [
        share_hold(1, "GPU-full", 0, 4096, "ml101"),
        share_hold(2, "GPU-full", 1, 4096, "ml101"),
        share_hold(3, "GPU-half", 0, 4096, "ml101"),
    ]
    hosts = [inventory(device("full"), device("half"), device("empty"))]
    pool = Pool(sharing_policy(placement=policy), hosts, holds=holds, now=T0)
    assert taken(pool, ML_SHARE) == [expected]


def test_spread_counts_people_where_least_loaded_counts_memory() -> None:
    holds = [
        share_hold(1, "GPU-two", 0, 1000, "ml101"),
        share_hold(2, "GPU-two", 1, 1000, "ml101"),
        share_hold(3, "GPU-one", 0, 8000, "ml101"),
    ]
    hosts = [inventory(device("one"), device("two"))]
    spread = Pool(sharing_policy(placement=PlacementPolicy.SPREAD), hosts, holds=holds, now=T0)
    assert taken(spread, ML_SHARE) == ["GPU-one/share-1"]
    least = Pool(sharing_policy(), hosts, holds=holds, now=T0)
    assert taken(least, ML_SHARE) == ["GPU-two/share-2"]


@pytest.mark.proves("P5")
@pytest.mark.parametrize("policy", PlacementPolicy)
@pytest.mark.parametrize(
    "unknown",
    [Load(), Load(busy_percent=0), Load(used_mib=0)],
)
def test_an_unknown_load_is_never_taken_for_idle(policy: PlacementPolicy, unknown: Load) -> None:
    busy = Load(used_mib=0, busy_percent=100)
    hosts = [inventory(device("a", load=unknown), device("b", load=busy))]
    pool = Pool(sharing_policy(placement=policy), hosts, now=T0)
    assert taken(pool, WHOLE) == ["GPU-b"]


def test_measured_memory_counts_where_it_is_more_than_what_was_promised() -> None:
    foreign = Load(used_mib=12000, busy_percent=0)
    hosts = [inventory(device("a", load=foreign), device("b"))]
    holds = [share_hold(1, "GPU-b", 0, 4096, "ml101")]
    pool = Pool(sharing_policy(), hosts, holds=holds, now=T0)
    assert taken(pool, ML_SHARE) == ["GPU-b/share-1"]


def test_ties_go_by_host_and_uuid() -> None:
    hosts = [inventory(device("b")), inventory(device("c"), device("a"), host_id="attic")]
    pool = Pool(sharing_policy(), hosts, now=T0)
    assert taken(pool, WHOLE) == ["GPU-a"]


def test_the_smallest_instance_that_fits_and_one_of_unknown_size_last() -> None:
    lab = mig_device("m", 20, 5, 10)
    unknown = replace(lab.instances[0], uuid="MIG-m-9", memory_mib=None)
    lab = replace(lab, instances=(unknown, *lab.instances))
    pool = Pool(sharing_policy(), [inventory(lab)], now=T0)
    assert taken(pool, replace(ANY_MIG, memory_mib=6000)) == ["MIG-m-2"]
    assert taken(pool, replace(ANY_MIG, memory_mib=None)) == ["MIG-m-1"]
    twenty = replace(SMALL_MIG, instance="4g.20gb")
    assert taken(pool, twenty) == ["MIG-m-0"]


def test_an_instance_of_a_device_that_is_still_held_whole_is_not_free() -> None:
    pool = Pool(
        sharing_policy(), [inventory(mig_device("m", 5))], holds=[hold_of(1, "GPU-m")], now=T0
    )
    assert taken(pool, SMALL_MIG) is None
    assert availability(pool, SMALL_MIG) == Availability(free=0, total=1)


def test_several_devices_come_from_one_host_and_one_model_or_not_at_all() -> None:
    apart = [
        inventory(device("a"), device("b", model="H200", memory_mib=143771)),
        inventory(device("c"), host_id="tower"),
    ]
    assert taken(Pool(sharing_policy(), apart, now=T0), PAIR) is None
    together = [inventory(*apart[0].devices, device("d")), apart[1]]
    assert taken(Pool(sharing_policy(), together, now=T0), PAIR) == ["GPU-a", "GPU-d"]


def test_of_two_teams_the_better_one_is_taken_whatever_the_order() -> None:
    busy = Load(used_mib=9000, busy_percent=90)
    teams = [
        inventory(device("a", load=busy), device("b", load=busy), host_id="attic"),
        inventory(device("c"), device("d")),
    ]
    for hosts in (teams, teams[::-1]):
        assert taken(Pool(sharing_policy(), hosts, now=T0), PAIR) == ["GPU-c", "GPU-d"]


def test_a_cordoned_instance_is_passed_over() -> None:
    pool = Pool(sharing_policy(), [inventory(mig_device("m", 5, 5))], {"MIG-m-0": "ECC"}, now=T0)
    assert taken(pool, SMALL_MIG) == ["MIG-m-1"]
    assert availability(pool, SMALL_MIG) == Availability(free=1, total=2, unavailable=1)


def test_what_is_given_back_is_free_again_to_the_last_mib() -> None:
    holds = [
        share_hold(1, "GPU-a", 0, 8000, "ml101"),
        share_hold(2, "GPU-a", 1, 7000, "ml101"),
        hold_of(3, "GPU-b"),
    ]
    pool = Pool(sharing_policy(), [inventory(device("a"), device("b"))], holds=holds, now=T0)
    assert (taken(pool, ML_SHARE), taken(pool, WHOLE)) == (None, None)
    pool.remove(holds[0])
    assert pool.devices["GPU-a"].promised_mib == 7000
    assert taken(pool, replace(ML_SHARE, memory_mib=8872)) == ["GPU-a/share-0"]
    assert taken(pool, VIS_SHARE) is None
    pool.remove(holds[1])
    pool.remove(holds[2])
    assert availability(pool, WHOLE) == Availability(free=2, total=2)
    assert taken(pool, VIS_SHARE) == ["GPU-a/share-0"]


def test_strangers_never_sit_on_one_device() -> None:
    holds = [share_hold(1, "GPU-a", 0, 4096, "ml101")]
    pool = Pool(sharing_policy(), [inventory(device("a"))], holds=holds, now=T0)
    assert taken(pool, VIS_SHARE) is None
    assert taken(pool, WHOLE) is None
    assert taken(pool, ML_SHARE) == ["GPU-a/share-1"]


def test_the_lowest_free_ordinal_is_reused() -> None:
    holds = [share_hold(1, "GPU-a", 0, 4096, "ml101"), share_hold(2, "GPU-a", 2, 4096, "ml101")]
    pool = Pool(sharing_policy(), [inventory(device("a"))], holds=holds, now=T0)
    assert taken(pool, ML_SHARE) == ["GPU-a/share-1"]


def test_headroom_is_never_handed_out() -> None:
    policy = Policy(rules=(DeviceRule(modes=frozenset({Mode.TIME_SLICED}), headroom_mib=1),))
    hosts = [inventory(device("a", memory_mib=8192))]
    pool = Pool(policy, hosts, now=T0)
    assert availability(pool, ML_SHARE) == Availability(free=1, total=1)  # 2 x 4096 is too much


@pytest.mark.proves("P7")
def test_shares_of_a_real_device_wait_for_a_cap_that_holds() -> None:
    pool = Pool(sharing_policy(), [inventory(device("a"), simulated=False)], now=T0)
    assert taken(pool, ML_SHARE) is None
    assert taken(pool, WHOLE) == ["GPU-a"]
    why = explain(pool, ML_SHARE, [WHOLE, VIS_SHARE, CPU_ONLY, ML_SHARE])
    assert why.code is Code.CAP_NOT_HELD
    assert why.values == {
        "profile": "A share for ml101",
        "alternatives": ["A whole GPU", "CPU only"],
    }


@pytest.mark.proves("P7")
def test_a_silent_host_gives_no_share_and_is_named_with_the_time() -> None:
    hosts = [inventory(device("a"), observed_at=after(-61))]
    pool = Pool(sharing_policy(), hosts, now=T0)
    assert taken(pool, ML_SHARE) is None
    assert taken(pool, WHOLE) == ["GPU-a"]
    assert availability(pool, ML_SHARE) == Availability(
        free=0, total=3, unavailable=3, silent_since=after(-61)
    )
    why = explain(pool, ML_SHARE)
    assert (why.code, why.values) == (Code.INVENTORY_AWAY, {"since": "2026-09-01T07:58:59+00:00"})


def test_a_silent_host_without_room_is_not_what_stands_in_the_way() -> None:
    hosts = [
        inventory(device("a"), observed_at=after(-61)),
        inventory(device("b"), host_id="tower"),
    ]
    holds = [
        share_hold(at, f"GPU-{name}", ordinal, 4096, "ml101")
        for at, (name, ordinal) in enumerate((n, o) for n in "ab" for o in range(3))
    ]
    pool = Pool(sharing_policy(), hosts, holds=holds, now=T0)
    why = explain(pool, ML_SHARE)
    assert why.code is Code.ALL_IN_USE
    assert (why.values["total"], why.values["in_use"], why.values["unavailable"]) == (6, 3, 3)


def test_nothing_fits_says_how_many_devices_were_looked_at() -> None:
    pool = Pool(sharing_policy(), [inventory(device("a"), device("b"))], now=T0)
    why = explain(pool, replace(WHOLE, models=("H200",)), [WHOLE, ML_SHARE, SMALL_MIG])
    assert why.code is Code.NOTHING_FITS
    assert why.values == {
        "profile": "A whole GPU", "devices": 2, "alternatives": ["A share for ml101"],
    }  # fmt: skip


def test_all_in_use_counts_holders_and_trouble_apart() -> None:
    lab = [device("a"), device("b"), device("c", unavailable=SICK), device("d")]
    pool = Pool(
        sharing_policy(), [inventory(*lab)], {"GPU-d": "fan"},
        [hold_of(1, "GPU-a"), hold_of(2, "GPU-b")], now=T0,
    )  # fmt: skip
    assert availability(pool, WHOLE) == Availability(free=0, total=4, unavailable=2)
    why = explain(pool, WHOLE, [CPU_ONLY, PAIR])
    assert why.code is Code.ALL_IN_USE
    assert why.values == {
        "profile": "A whole GPU", "total": 4, "in_use": 2, "unavailable": 2,
        "alternatives": ["CPU only"],
    }  # fmt: skip


def test_four_shares_count_as_four_whoever_holds_them() -> None:
    owners = [(1, "ml101"), (2, "ml101"), (3, "ml101"), (4, "ml101")]
    holds = [share_hold(at, "GPU-a", at, 3900, group) for at, group in owners]
    pool = Pool(sharing_policy(), [inventory(device("a"))], holds=holds, now=T0)
    fourth = replace(ML_SHARE, memory_mib=3900)
    counted = availability(pool, fourth)
    assert (counted.free, counted.in_use, counted.total) == (0, 4, 4)
