"""Where instances fit: examples from NVIDIA's table, and the model against brute force."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuspawner.gpus import mig
from gpuspawner.gpus.presets import A100_40, H100_80

BOARDS = {"a100": A100_40, "h100": H100_80}
NAMES = [profile.name for profile in A100_40.profiles]
# The table of gpu mechanics 6.4 again, typed apart from the product's.
STARTS = {
    "1g.5gb": ([0, 1, 2, 3, 4, 5, 6], 1),
    "1g.5gb+me": ([0, 1, 2, 3, 4, 5, 6], 1),
    "1g.10gb": ([0, 2, 4, 6], 2),
    "2g.10gb": ([0, 2, 4], 2),
    "3g.20gb": ([0, 4], 4),
    "4g.20gb": ([0], 4),
    "7g.40gb": ([0], 8),
}


def placed(*layout, board=A100_40):
    return mig.place([mig.parse(text, board.profiles) for text in layout])


def cells(starts, layout):
    return [
        start + offset
        for start, name in zip(starts, layout, strict=True)
        for offset in range(STARTS[name][1])
    ]


def possible(layout):
    """Try every combination of starts."""
    if layout.count("1g.5gb+me") > 1:
        return False
    for starts in itertools.product(*(STARTS[name][0] for name in layout)):
        taken = [
            s + i for s, name in zip(starts, layout, strict=True) for i in range(STARTS[name][1])
        ]
        if len(taken) == len(set(taken)):
            return True
    return False


def test_the_table_of_profiles():
    assert {p.name: (list(p.starts), p.memory_slices) for p in A100_40.profiles} == STARTS
    assert [p.name for p in H100_80.profiles] == [
        "1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb",
    ]  # fmt: skip


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_real_memory_is_a_little_below_the_name(board):
    for profile in board.profiles:
        named_mib = int(profile.name.partition(".")[2].partition("gb")[0]) * 1024
        assert 0.9 * named_mib < profile.memory_mib < named_mib
        assert profile.memory_mib <= board.memory_mib * profile.memory_slices / 8


@pytest.mark.parametrize(
    ("layout", "starts"),
    [
        ((), ()),
        (["1g.5gb"] * 7, (0, 1, 2, 3, 4, 5, 6)),
        (["3g.20gb", "3g.20gb"], (0, 4)),
        (["3g.20gb", "4g.20gb"], (4, 0)),  # whatever the order
        (["2g.10gb"] * 3, (0, 2, 4)),
        # A driver that put the 3g first, at 0, would have no room for the last 1g.
        (["3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb"], (4, 0, 2, 3)),
        (["7g.40gb"], (0,)),
        (["2g.10gb:4", "2g.10gb"], (4, 0)),
        (["3g.20gb:4"], (4,)),  # a hole before it
        (["1g.10gb"] * 4, (0, 2, 4, 6)),
    ],
)
def test_layouts_that_fit(layout, starts):
    assert placed(*layout) == starts


@pytest.mark.parametrize(
    ("layout", "sentence"),
    [
        (["1g.5gb"] * 8, "1g.5gb does not fit beside 1g.5gb, 1g.5gb"),
        (["3g.20gb", "3g.20gb", "1g.5gb"], "1g.5gb does not fit beside 3g.20gb, 3g.20gb (8 mem"),
        (["3g.20gb:0", "4g.20gb"], "4g.20gb does not fit beside 3g.20gb:0"),
        (["4g.20gb", "4g.20gb"], "4g.20gb does not fit beside 4g.20gb"),
        (["7g.40gb", "1g.5gb"], "1g.5gb does not fit beside 7g.40gb"),
        (["1g.5gb+me", "1g.5gb+me"], "1g.5gb+me does not fit beside 1g.5gb+me"),
        (["2g.10gb"] * 4, "2g.10gb does not fit beside 2g.10gb, 2g.10gb, 2g.10gb"),
        (["2g.10gb:1"], "'2g.10gb:1': 2g.10gb begins at memory slice 0 or 2 or 4"),
        (["2g.10gb:x"], "'2g.10gb:x': 2g.10gb begins at memory slice"),
        (["9g.90gb"], "'9g.90gb' is not an instance profile here; known are 1g.5gb, 1g.5gb+me"),
    ],
)
def test_layouts_that_do_not_fit_name_the_culprit(layout, sentence):
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 - the sentence is compared below
        placed(*layout)
    assert sentence in str(refusal.value)


@settings(deadline=None)
@given(st.lists(st.sampled_from(NAMES), max_size=5))
def test_a_layout_fits_exactly_when_some_combination_of_starts_does(layout):
    try:
        starts = placed(*layout)
    except ValueError:
        assert not possible(layout)
        return
    taken = cells(starts, layout)
    assert len(taken) == len(set(taken))
    assert all(start in STARTS[name][0] for start, name in zip(starts, layout, strict=True))
    assert all(0 <= cell < 8 for cell in taken)


@settings(deadline=None)
@given(st.lists(st.sampled_from(NAMES), min_size=1, max_size=10), st.data())
def test_fewer_instances_fit_where_more_did_and_order_does_not_matter(layout, data):
    shuffled = data.draw(st.permutations(layout))
    try:
        placed(*layout)
    except ValueError:
        with pytest.raises(ValueError, match="does not fit"):
            placed(*shuffled)
        return
    placed(*shuffled)
    placed(*shuffled[1:])


@settings(deadline=None)
@given(st.lists(st.sampled_from(NAMES), max_size=7))
def test_the_starts_found_can_be_asked_for_by_name(layout):
    try:
        starts = placed(*layout)
    except ValueError:
        return
    named = [f"{name}:{start}" for name, start in zip(layout, starts, strict=True)]
    assert placed(*named) == starts
    profiles = A100_40.profiles
    assert [str(mig.parse(text, profiles)) for text in named] == named
