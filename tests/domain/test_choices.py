"""Choices: one validator for form, REST and saved options."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.domain.choices import KEYS, Choice, allowed_profiles, judge
from gpuspawner.domain.devices import Mode
from gpuspawner.domain.profiles import CPU_ONLY, Profile
from gpuspawner.domain.reasons import Code, Kind, RefusedError
from tests import strategies
from tests.builders import ML_SHARE, VIS_SHARE, WHOLE

ML = frozenset({"ml101"})
TORCH = Profile(name="torch", title="Torch", mode=Mode.WHOLE, images=("torch:2", "torch:1"))
SITE = (CPU_ONLY, WHOLE, TORCH, ML_SHARE, VIS_SHARE)
IMAGES = {"base": "registry/base:7", "torch": "registry/torch:7"}


@pytest.mark.parametrize(
    ("options", "profile", "image"),
    [
        (None, CPU_ONLY, None),
        ({}, CPU_ONLY, None),
        ({"profile": ""}, CPU_ONLY, None),
        ({"profile": "whole"}, WHOLE, None),
        ({"profile": "whole", "image": ""}, WHOLE, None),
        ({"profile": "whole", "image": "base"}, WHOLE, "registry/base:7"),
        ({"image": "torch"}, CPU_ONLY, "registry/torch:7"),
        ({"profile": "torch"}, TORCH, "torch:2"),
        ({"profile": "torch", "image": "torch:1"}, TORCH, "torch:1"),
        ({"profile": "ml-share"}, ML_SHARE, None),
    ],
)
def test_what_is_allowed_becomes_a_choice(
    options: Any, profile: Profile, image: str | None
) -> None:
    assert judge(options, SITE, ML, IMAGES) == Choice(profile=profile, image=image)


@pytest.mark.parametrize(
    ("options", "code", "values"),
    [
        ([], Code.OPTION_TYPE, {"key": "options", "expected": "a mapping", "got": "a list"}),
        ("whole", Code.OPTION_TYPE, {"key": "options", "expected": "a mapping", "got": "a text"}),
        (0, Code.OPTION_TYPE, {"key": "options", "expected": "a mapping", "got": "a number"}),
        ({"gpu": 1}, Code.OPTION_UNKNOWN, {"key": "gpu", "known": ["profile", "image"]}),
        ({7: 1}, Code.OPTION_UNKNOWN, {"key": "7", "known": ["profile", "image"]}),
        ({"Profile": "x"}, Code.OPTION_UNKNOWN, {"key": "Profile", "known": list(KEYS)}),
        (
            {"x" * 99: 1},
            Code.OPTION_UNKNOWN,
            {"key": "x" * 79 + "…", "known": ["profile", "image"]},
        ),
        (
            {"profile": ["whole"]},
            Code.OPTION_TYPE,
            {"key": "profile", "expected": "a text", "got": "a list"},
        ),
        (
            {"profile": None},
            Code.OPTION_TYPE,
            {"key": "profile", "expected": "a text", "got": "nothing"},
        ),
        (
            {"profile": "whole", "image": True},
            Code.OPTION_TYPE,
            {"key": "image", "expected": "a text", "got": "true or false"},
        ),
        (
            {"profile": "nope"},
            Code.PROFILE_UNKNOWN,
            {"key": "profile", "got": "nope", "known": ["cpu", "whole", "torch", "ml-share"]},
        ),
        (
            {"profile": "vis-share"},
            Code.PROFILE_NOT_ALLOWED,
            {
                "profile": "A share for vis202", "groups": ["vis202"],
                "alternatives": ["CPU only", "A whole GPU", "Torch", "A share for ml101"],
            },
        ),
        (
            {"image": "evil:1"},
            Code.IMAGE_UNKNOWN,
            {"key": "image", "got": "evil:1", "known": ["base", "torch"]},
        ),
        (
            {"profile": "torch", "image": "base"},
            Code.IMAGE_UNKNOWN,
            {"key": "image", "got": "base", "known": ["torch:2", "torch:1"]},
        ),
    ],
)  # fmt: skip
def test_what_is_not_allowed_is_refused_with_key_and_numbers(
    options: Any, code: Code, values: dict[str, Any]
) -> None:
    with pytest.raises(RefusedError) as caught:
        judge(options, SITE, ML, IMAGES)
    assert caught.value.reason.code is code
    assert caught.value.reason.values == values


def test_no_image_may_be_named_where_the_site_offers_none() -> None:
    with pytest.raises(RefusedError) as caught:
        judge({"image": "base"}, SITE, ML)
    assert caught.value.reason.values == {"key": "image", "got": "base", "known": []}


def test_a_marked_default_that_is_not_allowed_is_not_the_default_of_others() -> None:
    marked = Profile(name="m", title="M", mode=Mode.WHOLE, groups=("vis202",), default=True)
    assert judge({}, (marked, WHOLE), ML).profile is WHOLE


def test_who_may_use_nothing_is_told_so() -> None:
    with pytest.raises(RefusedError) as caught:
        judge({}, (VIS_SHARE,), ML)
    assert caught.value.reason.code is Code.PROFILE_NOT_ALLOWED
    assert caught.value.reason.values["alternatives"] == []


def test_allowed_profiles_keep_the_order_of_the_site() -> None:
    assert allowed_profiles(SITE, ML) == (CPU_ONLY, WHOLE, TORCH, ML_SHARE)
    assert allowed_profiles(SITE, frozenset()) == (CPU_ONLY, WHOLE, TORCH)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
near_misses = st.dictionaries(
    st.sampled_from(("profile", "image", "Image", "memory")) | st.integers(),
    anything | st.sampled_from(("whole", "torch", "vis-share", "torch:1", "base", "")),
    max_size=3,
)


@given(
    options=anything | near_misses,
    site=st.just(SITE) | st.lists(strategies.profiles(), max_size=3),
    groups=st.frozensets(st.sampled_from(("ml101", "vis202"))),
    images=st.none() | st.just(IMAGES),
)
def test_anything_is_an_allowed_choice_or_a_refusal_and_nothing_else(
    options: Any, site: Any, groups: frozenset[str], images: dict[str, str] | None
) -> None:
    try:
        choice = judge(options, site, groups, images)
    except RefusedError as error:
        reason = error.reason
        assert reason.kind in (Kind.INVALID, Kind.POLICY)
        if reason.kind is Kind.INVALID:
            keys = {"options"} | (
                {str(k)[:79] for k in options} if isinstance(options, dict) else set()
            )
            assert str(reason.values["key"]).rstrip("…")[:79] in {key.rstrip("…") for key in keys}
        return
    asked = options or {}
    assert set(asked) <= set(KEYS)
    assert choice.profile in site or choice.profile is CPU_ONLY
    assert choice.profile.is_allowed_for(groups)
    if asked.get("profile"):
        assert choice.profile.name == asked["profile"]
    named = asked.get("image")
    if choice.profile.images:
        assert choice.image == (named or choice.profile.images[0])
        assert choice.image in choice.profile.images
    else:
        assert choice.image == ((images or {})[named] if named else None)
