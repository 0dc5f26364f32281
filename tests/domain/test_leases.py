"""Leases: which state may follow which, and one name for one server."""

import itertools

import pytest
from hypothesis import given

from gpuspawner.domain.leases import (
    HOLDING,
    LIVE,
    InvalidTransitionError,
    ServerKey,
    State,
    check_transition,
)
from tests import strategies

ALLOWED = {
    (State.WAITING, State.GRANTED), (State.WAITING, State.ENDED),
    (State.GRANTED, State.RUNNING), (State.GRANTED, State.ENDING), (State.GRANTED, State.ENDED),
    (State.RUNNING, State.ENDING), (State.RUNNING, State.ENDED),
    (State.ENDING, State.ENDED),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after"), [*itertools.product(State, State)])
def test_the_table_of_transitions(before: State, after: State) -> None:
    if (before, after) in ALLOWED:
        check_transition(before, after)
        return
    with pytest.raises(InvalidTransitionError, match=f"cannot go from {before} to {after}"):
        check_transition(before, after)


def test_who_waits_is_living_and_holds_nothing() -> None:
    assert set(State) - LIVE == {State.ENDED}
    assert {State.WAITING} == LIVE - HOLDING


@given(strategies.server_keys, strategies.server_keys)
def test_two_servers_never_share_a_lane(one: ServerKey, other: ServerKey) -> None:
    assert (one.lane == other.lane) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("h", "ada", "x"), ("h", "adax", "")),
        (("h", "ada", "1:b"), ("h", "ada1:b", "")),
        (("1:a", "", ""), ("", "1:a", "")),
        (("h1", "1:a", ""), ("h", "11:a", "")),
        (("h", "ada/x", ""), ("h", "ada", "/x")),
    ],
)
def test_names_that_look_alike_have_lanes_of_their_own(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    first, second = (ServerKey(hub_id=h, user=u, server=s) for h, u, s in (one, other))
    assert first.lane != second.lane
