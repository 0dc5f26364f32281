"""The pool: how rules choose devices, and what joining it with inventory and holds shows."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from gpuspawner.domain.devices import Mode, Trouble, Unavailable
from gpuspawner.domain.policy import (
    DEFAULT_HEADROOM_MIB,
    DeviceRule,
    PlacementPolicy,
    Policy,
    PoolError,
    parse_policy,
    policy_from_dict,
    policy_to_dict,
)
from gpuspawner.domain.pool import FRESH_FOR, Pool
from gpuspawner.domain.profiles import CPU_ONLY, Profile, ProfileError
from tests import strategies
from tests.builders import (
    T0,
    after,
    device,
    hold_of,
    inventory,
    mig_device,
    share_hold,
    sharing_policy,
)


def test_a_policy_is_read_key_by_key() -> None:
    policy = parse_policy(
        [{"name": "whole", "mode": "whole"}],
        [{"select": "#0", "modes": ["time-sliced"], "headroom": "1GiB"}, {"select": "T4"}],
        "binpack",
    )
    assert [profile.name for profile in policy.profiles] == ["whole"]
    assert policy.rules == (
        DeviceRule(select="#0", modes=frozenset({Mode.TIME_SLICED}), headroom_mib=1024),
        DeviceRule(
            select="T4", modes=frozenset({Mode.WHOLE, Mode.INSTANCE}),
            headroom_mib=DEFAULT_HEADROOM_MIB,
        ),
    )  # fmt: skip
    assert policy.placement is PlacementPolicy.BINPACK


@pytest.mark.parametrize(
    ("rule", "parts"),
    [
        ("*", ["devices[0]", "a mapping", "'*'"]),
        ({"mode": ["whole"]}, ["devices[0]", "unknown key 'mode'", "select, modes, headroom"]),
        ({"select": 0}, ["devices[0].select", "'#index'", "got 0"]),
        ({"select": ""}, ["devices[0].select", "got ''"]),
        ({"modes": "whole"}, ["devices[0].modes", "a list", "'whole'"]),
        ({"modes": ["mps"]}, ["devices[0].modes", "whole, mig, time-sliced", "['mps']"]),
        ({"modes": ["whole", 3]}, ["devices[0].modes", "['whole', 3]"]),
        ({"modes": [["whole"]]}, ["devices[0].modes", "[['whole']]"]),
        ({"headroom": 512}, ["devices[0].headroom", "unit", "512"]),
        ({"headroom": "0MiB"}, ["devices[0].headroom", "above zero"]),
    ],
)
def test_a_wrong_rule_names_the_place_and_what_was_expected(rule: Any, parts: list[str]) -> None:
    with pytest.raises(PoolError) as caught:
        parse_policy([], [rule])
    assert [part for part in parts if part not in str(caught.value)] == []


@pytest.mark.parametrize("placement", ["random", "", None, ["spread"]])
def test_a_wrong_placement_names_the_known_ones(placement: Any) -> None:
    with pytest.raises(PoolError, match="least-loaded, binpack, spread"):
        parse_policy([], [], placement)


def test_a_wrong_profile_is_a_profile_error() -> None:
    with pytest.raises(ProfileError, match="'colour'"):
        parse_policy([{"name": "a", "colour": 1}], [])


@pytest.mark.parametrize(
    ("select", "covered"),
    [
        ("*", True), ("GPU-a", True), ("GPU-b", False), ("t4", True), ("Tesla", True),
        ("#3", True), ("#0", False), ("#33", False), ("3", False), ("#", False),
    ],
)  # fmt: skip
def test_what_a_rule_covers(select: str, covered: bool) -> None:
    assert DeviceRule(select=select).covers(device("a", index=3)) is covered


def test_the_first_rule_that_covers_a_device_counts() -> None:
    first = DeviceRule(select="T4", headroom_mib=1)
    policy = Policy(rules=(first, DeviceRule(select="GPU-a"), DeviceRule(headroom_mib=3)))
    assert policy.rule_for(device("a")) is first
    assert policy.rule_for(device("a", model="H200")).select == "GPU-a"
    assert policy.rule_for(device("b", model="H200")).headroom_mib == 3


def test_without_a_rule_a_device_is_never_shared() -> None:
    rule = Policy(rules=(DeviceRule(select="H200"),)).rule_for(device("a"))
    assert rule.modes == {Mode.WHOLE, Mode.INSTANCE}


@pytest.mark.parametrize(
    ("partitioned", "allowed"),
    [
        (False, {Mode.WHOLE, Mode.TIME_SLICED}),
        (True, {Mode.INSTANCE}),
        (None, set()),
    ],
)
def test_partitioning_decides_what_a_device_may_be(
    partitioned: bool | None, allowed: set[Mode]
) -> None:
    pool = Pool(sharing_policy(), [inventory(device("a", partitioned=partitioned))], now=T0)
    assert {mode for mode in Mode if pool.for_mode(mode)} == allowed


def test_a_cordon_on_a_device_and_on_an_instance() -> None:
    hosts = [inventory(device("a"), mig_device("m", 5, 5))]
    pool = Pool(Policy(), hosts, {"GPU-a": "fan", "MIG-m-1": "test", "GPU-gone": "x"}, now=T0)
    fan = Unavailable(
        trouble=Trouble.CORDONED, detail="fan", cleared_by="gpuspawner uncordon"
    )  # fmt: skip
    assert pool.devices["GPU-a"].unavailable == fan
    assert pool.devices["GPU-m"].unavailable is None
    assert set(pool.devices["GPU-m"].unavailable_units) == {"MIG-m-1"}


def test_trouble_that_was_seen_is_shown_before_the_cordon() -> None:
    sick = Unavailable(trouble=Trouble.SICK, detail="XID 79", cleared_by="reboot")
    pool = Pool(Policy(), [inventory(device("a", unavailable=sick))], {"GPU-a": "fan"}, now=T0)
    assert pool.devices["GPU-a"].unavailable == sick


def test_an_observation_is_fresh_for_a_minute() -> None:
    hosts = [inventory(device("a"))]
    seconds = FRESH_FOR.total_seconds()
    assert Pool(Policy(), hosts, now=after(seconds)).devices["GPU-a"].fresh
    assert not Pool(Policy(), hosts, now=after(seconds + 0.001)).devices["GPU-a"].fresh


def test_holds_are_counted_where_their_device_is_and_vanished_ones_take_no_room() -> None:
    holds = [
        share_hold(1, "GPU-a", 0, 4096, "ml101"),
        share_hold(2, "GPU-a", 1, 2048, "ml101"),
        hold_of(3, "GPU-gone"),
    ]
    pool = Pool(sharing_policy(), [inventory(device("a"), device("b"))], holds=holds, now=T0)
    shared = pool.devices["GPU-a"]
    assert shared.promised_mib == 6144
    assert (shared.held_mode, shared.held_group) == (Mode.TIME_SLICED, "ml101")
    assert shared.capacity_mib == 16384 - DEFAULT_HEADROOM_MIB
    assert (pool.devices["GPU-b"].held_mode, pool.devices["GPU-b"].held_group) == (None, None)
    assert set(pool.devices) == {"GPU-a", "GPU-b"}


@pytest.mark.proves("P5")
def test_capacity_is_unknown_with_the_memory_and_never_below_zero() -> None:
    hosts = [inventory(device("a", memory_mib=None), device("b", memory_mib=100))]
    pool = Pool(sharing_policy(), hosts, now=T0)
    assert pool.devices["GPU-a"].capacity_mib is None
    assert pool.devices["GPU-b"].capacity_mib == 0


@pytest.mark.parametrize("reverse", [False, True])
def test_a_device_that_two_hosts_report_is_where_it_was_seen_last(reverse: bool) -> None:
    hosts = [
        inventory(device("a"), host_id="zoo", observed_at=after(-3600)),
        inventory(device("a"), host_id="lab"),
    ]
    pool = Pool(Policy(), hosts[::-1] if reverse else hosts, now=T0)
    assert pool.devices["GPU-a"].device.host_id == "lab"


def test_instances_by_the_name_of_their_size_or_all() -> None:
    pool = Pool(Policy(), [inventory(mig_device("m", 5, 10), device("a"))], now=T0)
    assert [each.uuid for _, each in pool.instances("1g.5gb")] == ["MIG-m-0"]
    assert [each.uuid for _, each in pool.instances(None)] == ["MIG-m-0", "MIG-m-1"]
    assert list(pool.instances("7g.40gb")) == []


@given(strategies.policies(), strategies.profiles())
def test_plain_data_round_trip(policy: Policy, profile: Profile) -> None:
    policy = replace(policy, profiles=(CPU_ONLY, profile))
    assert policy_from_dict(json.loads(json.dumps(policy_to_dict(policy)))) == policy
