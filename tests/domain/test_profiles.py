"""Profiles: what a site may write, and what it is told when it is wrong."""

import json
import re
from typing import Any

import pytest
from hypothesis import given

from gpuspawner.domain.devices import Mode
from gpuspawner.domain.profiles import (
    CPU_ONLY,
    Profile,
    ProfileError,
    default_profile,
    parse_profiles,
    profile_from_dict,
    profile_to_dict,
)
from tests import strategies

SHARE = {"name": "s", "mode": "time-sliced", "memory": "4GiB", "groups": ["ml101"]}


def test_a_full_profile_is_read_key_by_key() -> None:
    (profile,) = parse_profiles(
        [{
            "name": "big", "title": "Two big ones", "description": "For finals.", "mode": "whole",
            "count": 2, "memory": "40GiB", "models": ["A100"], "images": ["torch:1"],
            "groups": ["ml101", "vis202"], "default": True, "hour_weight": {"A100": 2},
        }]
    )  # fmt: skip
    assert profile == Profile(
        name="big", title="Two big ones", description="For finals.", mode=Mode.WHOLE, count=2,
        memory_mib=40960, models=("A100",), images=("torch:1",), groups=("ml101", "vis202"),
        default=True, hour_weight={"A100": 2.0},
    )  # fmt: skip


def test_an_empty_list_gives_the_one_profile_without_gpu() -> None:
    assert parse_profiles([]) == (CPU_ONLY,)
    assert CPU_ONLY.mode is None


def test_absent_and_null_keys_mean_the_same() -> None:
    nulls = dict.fromkeys(("title", "description", "mode", "count", "memory", "instance"))
    assert parse_profiles([{"name": "cpu", **nulls}]) == parse_profiles([{"name": "cpu"}])


def test_the_title_is_the_name_where_none_is_given() -> None:
    assert [p.title for p in parse_profiles([{"name": "a"}, {"name": "b", "title": ""}])] == [
        "a", "b",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("entry", "parts"),
    [
        ("whole", ["profiles[0]", "a mapping", "'whole'"]),
        ({"name": "a", "colour": 1}, ["profiles[0]", "'colour'", "known are", "memory,"]),
        ({"name": "a", "memory_mib": 5}, ["unknown key 'memory_mib'"]),
        ({3: 1}, ["unknown key 3"]),
        ({}, ["profiles[0].name", "None"]),
        ({"name": 3}, ["profiles[0].name", "got 3"]),
        ({"name": ""}, ["profiles[0].name", "1 to 40"]),
        ({"name": "A"}, ["profiles[0].name", "'A'"]),
        ({"name": "-a"}, ["'-a'"]),
        ({"name": "a-"}, ["'a-'"]),
        ({"name": "a" * 41}, ["profiles[0].name"]),
        ({"name": "a\n"}, ["profiles[0].name"]),
        ({"name": "a", "title": 5}, ["profile 'a'.title", "got 5"]),
        ({"name": "a", "title": "t" * 501}, ["profile 'a'.title", "at most 500"]),
        ({"name": "a", "description": ["x"]}, ["profile 'a'.description", "['x']"]),
        ({"name": "a", "mode": "gpu"}, ["profile 'a'.mode", "'whole'", "'mig'", "'gpu'"]),
        ({"name": "a", "mode": ["whole"]}, ["profile 'a'.mode", "['whole']"]),
        ({"name": "a", "mode": "whole", "count": 0}, ["profile 'a'.count", "1 to 64", "got 0"]),
        ({"name": "a", "mode": "whole", "count": 65}, ["profile 'a'.count", "got 65"]),
        ({"name": "a", "mode": "whole", "count": True}, ["profile 'a'.count", "got True"]),
        ({"name": "a", "mode": "whole", "count": 1.0}, ["profile 'a'.count", "got 1.0"]),
        ({"name": "a", "mode": "whole", "memory": 8192}, ["profile 'a'.memory", "'8GiB'", "8192"]),
        ({"name": "a", "mode": "whole", "memory": "8"}, ["profile 'a'.memory", "unit"]),
        ({"name": "a", "mode": "whole", "compute_percent": 101}, ["'a'.compute_percent", "100"]),
        ({"name": "a", "mode": "whole", "instance": "1g.5gb"}, ["'a'", "'instance'", "'mig'"]),
        ({"name": "a", "models": "A100"}, ["profile 'a'.models", "a list of texts", "'A100'"]),
        ({"name": "a", "images": [""]}, ["profile 'a'.images", "['']"]),
        ({"name": "a", "groups": [1]}, ["profile 'a'.groups", "[1]"]),
        ({"name": "a", "groups": None}, ["profile 'a'.groups", "None"]),
        ({"name": "a", "default": "yes"}, ["profile 'a'.default", "true or false", "'yes'"]),
        ({"name": "a", "hour_weight": [1]}, ["profile 'a'.hour_weight", "mapping"]),
        ({"name": "a", "hour_weight": {"A100": 0}}, ["'A100'", "above 0", "got 0"]),
        ({"name": "a", "hour_weight": {"A100": 1001}}, ["at most 1000", "got 1001"]),
        ({"name": "a", "hour_weight": {"A100": float("nan")}}, ["'A100'", "nan"]),
        ({"name": "a", "hour_weight": {"A100": True}}, ["'A100'", "got True"]),
        ({"name": "a", "hour_weight": {1: 1}}, ["hour_weight"]),
        ({"name": "a", "memory": "1GiB"}, ["profile 'a'", "no mode", "memory has no meaning"]),
        ({"name": "a", "compute_percent": 5}, ["profile 'a'", "compute_percent has no meaning"]),
        ({"name": "a", "instance": "1g"}, ["profile 'a'", "instance has no meaning"]),
        ({"name": "a", "count": 2}, ["profile 'a'", "no mode", "count"]),
        ({"name": "a", "models": ["T4"]}, ["profile 'a'", "no mode", "models"]),
        ({"name": "a", "mode": "mps", "memory": "1GiB"}, ["profile 'a'", "'mps'", "'time-sliced'"]),
        ({**SHARE, "memory": None}, ["profile 's'", "its memory", "'5GiB'"]),
        ({**SHARE, "groups": []}, ["profile 's'", "exactly one hub group", "got 0"]),
        ({**SHARE, "groups": ["ml101", "vis202"]}, ["exactly one hub group", "got 2"]),
        ({**SHARE, "count": 2}, ["profile 's'", "count above 1", "'whole'"]),
        ({"name": "a", "mode": "mig"}, ["profile 'a'", "'2g.10gb'", "least memory"]),
        ({"name": "a", "mode": "mig", "instance": "1g", "count": 2}, ["count above 1"]),
    ],
)  # fmt: skip
def test_a_mistake_names_the_place_what_was_expected_and_what_came(
    entry: Any, parts: list[str]
) -> None:
    with pytest.raises(ProfileError) as caught:
        parse_profiles([entry])
    missing = [part for part in parts if part not in str(caught.value)]
    assert not missing, str(caught.value)


def test_the_second_profile_is_named_by_its_place() -> None:
    with pytest.raises(ProfileError, match=re.escape("profiles[1].name")):
        parse_profiles([{"name": "a"}, {"name": "B"}])


def test_a_name_used_twice_is_refused() -> None:
    with pytest.raises(ProfileError, match="name 'a' is used 2 times"):
        parse_profiles([{"name": "a"}, {"name": "b"}, {"name": "a"}])


def test_two_defaults_are_refused() -> None:
    with pytest.raises(ProfileError, match="more than one profile is marked default"):
        parse_profiles([{"name": "a", "default": True}, {"name": "b", "default": True}])


def test_the_default_is_the_marked_one_else_the_smallest_grant() -> None:
    gpu = Profile(name="g", title="G", mode=Mode.WHOLE)
    cpu = Profile(name="c", title="C")
    marked = Profile(name="m", title="M", mode=Mode.WHOLE, default=True)
    assert default_profile([gpu, cpu, marked]) is marked
    assert default_profile([gpu, cpu]) is cpu
    assert default_profile([gpu]) is gpu
    assert default_profile([]) is CPU_ONLY


def test_who_may_use_a_profile_and_who_shares_with_whom() -> None:
    (share,) = parse_profiles([SHARE])
    whole = Profile(name="w", title="W", mode=Mode.WHOLE, groups=("ml101", "vis202"))
    assert share.share_group == "ml101"
    assert whole.share_group is None
    assert CPU_ONLY.share_group is None
    assert whole.is_allowed_for(frozenset({"vis202"}))
    assert not whole.is_allowed_for(frozenset({"other"}))
    assert not whole.is_allowed_for(frozenset())
    assert CPU_ONLY.is_allowed_for(frozenset())


def test_a_model_is_wanted_by_any_part_of_its_name() -> None:
    profile = Profile(name="w", title="W", mode=Mode.WHOLE, models=("a100", "T4"))
    assert profile.fits_model("NVIDIA A100-SXM4-40GB")
    assert profile.fits_model("Tesla T4")
    assert not profile.fits_model("NVIDIA H200")
    assert Profile(name="w", title="W", mode=Mode.WHOLE).fits_model("")


@given(strategies.profiles())
def test_plain_data_round_trip(profile: Profile) -> None:
    data = json.loads(json.dumps(profile_to_dict(profile)))
    assert profile_from_dict(data) == profile
