"""When a lease may be ended, and what an end is called."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpuspawner.domain.endings import (
    LEAVE_RUN_TO_HUB,
    LEAVE_TO_HUB,
    START_MARGIN,
    Step,
    next_step,
    why_ended,
)
from gpuspawner.domain.leases import HOLDING, Evidence, Lease, Source, State
from gpuspawner.domain.reasons import Code, reason
from tests.builders import T0, WHOLE, after, key

LEASE = Lease(
    lease_id=1, key=key("ada"), state=State.GRANTED, profile=WHOLE, image=None, engine="docker",
    requested_at=T0, granted_at=T0, start_deadline=after(600), run_id="c1",
)  # fmt: skip
GRANTED, RUNNING = LEASE, replace(LEASE, state=State.RUNNING, running_at=after(5))
ENDING = replace(LEASE, state=State.ENDING)
LATE = 600 + START_MARGIN.total_seconds()

RUNS, MADE, OVER, ABSENT = "runs", "made", "over", "absent"
HUBS = LEAVE_RUN_TO_HUB.total_seconds()


def step(
    lease: Lease, sight: str, now: datetime, ended_at: datetime | None = None, since: datetime = T0
) -> Step:
    return next_step(
        lease, running_since=since if sight == RUNS else None, over=sight in (OVER, ABSENT),
        absent=sight == ABSENT, ended_at=ended_at, now=now,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("lease", "sight", "ended", "now", "expected"),
    [
        # A start is the hub's until its time is over, whatever is to be seen.
        (GRANTED, RUNS, None, 0, Step.LEAVE),
        (GRANTED, RUNS, None, HUBS - 1, Step.LEAVE),
        (GRANTED, ABSENT, None, LATE - 1, Step.LEAVE),
        # But what has been running for a while is written down, and what nobody bound is not.
        (GRANTED, RUNS, None, HUBS, Step.RUN),
        (replace(GRANTED, run_id=None), RUNS, None, LATE - 1, Step.LEAVE),
        (replace(GRANTED, run_id=None), RUNS, None, LATE, Step.RUN),
        (GRANTED, MADE, None, 600, Step.LEAVE),
        (GRANTED, OVER, None, LATE - 1, Step.LEAVE),
        (GRANTED, OVER, 1, LATE - 1, Step.LEAVE),
        (GRANTED, RUNS, None, LATE, Step.RUN),
        (GRANTED, MADE, None, LATE, Step.CLEAR),
        (GRANTED, OVER, None, LATE, Step.CLEAR),
        (GRANTED, OVER, LATE - 1, LATE, Step.CLEAR),
        (GRANTED, ABSENT, None, LATE, Step.CLEAR),
        (replace(GRANTED, start_deadline=None), OVER, None, 10**6, Step.LEAVE),
        # What runs is left alone; what has ended is left to the hub for a moment.
        (RUNNING, RUNS, None, 10**6, Step.LEAVE),
        (RUNNING, MADE, None, 10**6, Step.LEAVE),
        (RUNNING, OVER, 100, 100, Step.LEAVE),
        (RUNNING, OVER, 100, 104.9, Step.LEAVE),
        (RUNNING, OVER, 100, 105, Step.CLEAR),
        (RUNNING, OVER, None, 0, Step.CLEAR),
        (RUNNING, ABSENT, 100, 104.9, Step.LEAVE),
        (RUNNING, ABSENT, None, 0, Step.CLEAR),
        # What is to end is ended, but not before a call that was given up must be over.
        (ENDING, RUNS, None, 0, Step.CLEAR),
        (ENDING, MADE, None, 0, Step.CLEAR),
        (ENDING, OVER, 0, 0, Step.CLEAR),
        (ENDING, ABSENT, None, 0, Step.CLEAR),
        (replace(ENDING, look_again_at=after(150)), ABSENT, None, 149, Step.LEAVE),
        (replace(ENDING, look_again_at=after(150)), ABSENT, None, 150, Step.CLEAR),
        # It came: there is nothing to wait for any more.
        (replace(ENDING, look_again_at=after(150)), RUNS, None, 1, Step.CLEAR),
        (replace(ENDING, look_again_at=after(150)), MADE, None, 1, Step.CLEAR),
        (replace(ENDING, look_again_at=after(150)), OVER, None, 1, Step.CLEAR),
    ],
)
def test_what_is_done_about_a_lease(
    lease: Lease, sight: str, ended: float | None, now: float, expected: Step
) -> None:
    ended_at = None if ended is None else after(ended)
    assert step(lease, sight, after(now), ended_at) is expected


moments = st.integers(0, 2000).map(after)
leases = st.builds(
    replace,
    st.just(LEASE),
    state=st.sampled_from(sorted(HOLDING)),
    run_id=st.sampled_from(("c1", None)),
    start_deadline=st.none() | moments,
    look_again_at=st.none() | moments,
)
sights = st.sampled_from((RUNS, MADE, OVER, ABSENT))


@given(leases, sights, st.none() | moments, moments, moments)
def test_nothing_is_done_too_early(
    lease: Lease, sight: str, ended_at: datetime | None, since: datetime, now: datetime
) -> None:
    done = step(lease, sight, now, ended_at, since)
    if done is Step.RUN:
        assert sight == RUNS
        assert lease.state is State.GRANTED
        assert now >= since or lease.start_deadline is not None
    if lease.state is State.RUNNING and sight not in (OVER, ABSENT):
        assert done is Step.LEAVE  # a working server is never cleared away
    if lease.state is State.GRANTED and done is Step.CLEAR:
        assert lease.start_deadline is not None
        assert now >= lease.start_deadline + START_MARGIN
    if lease.state is State.ENDING and sight == ABSENT and done is not Step.LEAVE:
        assert lease.look_again_at is None or now >= lease.look_again_at


@given(leases, sights, st.none() | moments, moments, st.integers(0, 2000))
def test_what_is_to_be_done_stays_to_be_done(
    lease: Lease, sight: str, ended_at: datetime | None, now: datetime, later: int
) -> None:
    first = step(lease, sight, now, ended_at)
    assume(first is not Step.LEAVE)
    assert step(lease, sight, now + timedelta(seconds=later), ended_at) is first


@given(leases, st.none() | moments)
def test_what_is_over_ends_at_last(lease: Lease, ended_at: datetime | None) -> None:
    assume(lease.start_deadline is not None)
    assert step(lease, OVER, after(10_000), ended_at) is Step.CLEAR


def test_the_hub_has_long_enough_to_read_the_last_lines() -> None:
    assert timedelta(seconds=2) <= LEAVE_TO_HUB <= timedelta(seconds=10)


@pytest.mark.parametrize(
    ("evidence", "absent", "expected"),
    [
        (Evidence(source=Source.ENGINE, exit_code=3), False, reason(Code.EXITED, exit_code=3)),
        (Evidence(source=Source.ENGINE, exit_code=None), False,
         reason(Code.EXITED, exit_code=None)),
        (Evidence(source=Source.ENGINE, exit_code=137, out_of_memory=True), False,
         reason(Code.OUT_OF_MEMORY)),
        (Evidence(source=Source.ENGINE, exit_code=137, out_of_memory=True), True,
         reason(Code.OUT_OF_MEMORY)),
        (Evidence(source=Source.EVENTS, exit_code=137), True, reason(Code.REMOVED)),
        (Evidence(source=Source.LAST_SEEN), True, reason(Code.REMOVED)),
        (Evidence(source=Source.NEVER_RAN), True, reason(Code.GIVEN_UP)),
        (Evidence(source=Source.NEVER_RAN), False, reason(Code.GIVEN_UP)),
    ],
)  # fmt: skip
def test_what_an_end_is_called(evidence: Evidence, absent: bool, expected: object) -> None:
    assert why_ended(evidence, absent=absent) == expected
