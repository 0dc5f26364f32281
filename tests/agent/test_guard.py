"""What the guard does about each lease, and when."""

from datetime import timedelta

import pytest

from gpuspawner.agent.guard import SEEN_EVERY, Guard
from gpuspawner.broker.broker import Broker
from gpuspawner.domain.endings import LEAVE_RUN_TO_HUB, START_MARGIN
from gpuspawner.domain.leases import Lease, Source, State
from gpuspawner.domain.reasons import Code, reason
from gpuspawner.engines.look import (
    Absent,
    Finished,
    Look,
)
from gpuspawner.ledger.store import LedgerAwayError
from tests.agent.guard_world import (
    AFTER_CLEAR,
    FINISHED,
    MADE,
    NEVER,
    REMOVED,
    RUNNING,
    Engine,
    World,
)
from tests.builders import T0, after, claim

EXPIRED = 600 + START_MARGIN.total_seconds()
END = {
    "exited": (Code.EXITED, Source.ENGINE),
    "removed": (Code.REMOVED, Source.EVENTS),
    "given-up": (Code.GIVEN_UP, Source.NEVER_RAN),
    "expired": (Code.START_EXPIRED, Source.NEVER_RAN),
}
# state, what is seen, seconds after the grant -> the state after a round, and how it ended
TABLE: list[tuple[State, Look, float, State, str | None]] = [
    (State.GRANTED, RUNNING, 100, State.GRANTED, None),
    (State.GRANTED, MADE, 100, State.GRANTED, None),
    (State.GRANTED, FINISHED, 100, State.GRANTED, None),
    (State.GRANTED, NEVER, 100, State.GRANTED, None),
    (State.GRANTED, NEVER, EXPIRED - 1, State.GRANTED, None),
    (State.GRANTED, RUNNING, EXPIRED, State.RUNNING, None),
    (State.GRANTED, MADE, EXPIRED, State.ENDED, "expired"),
    (State.GRANTED, NEVER, EXPIRED, State.ENDED, "expired"),
    (State.GRANTED, FINISHED, EXPIRED, State.ENDED, "exited"),
    (State.GRANTED, REMOVED, EXPIRED, State.ENDED, "removed"),
    (State.RUNNING, RUNNING, 100, State.RUNNING, None),
    (State.RUNNING, RUNNING, 10**6, State.RUNNING, None),
    (State.RUNNING, MADE, 100, State.RUNNING, None),
    (State.RUNNING, FINISHED, 12, State.RUNNING, None),
    (State.RUNNING, FINISHED, 15, State.ENDED, "exited"),
    (State.RUNNING, REMOVED, 12, State.RUNNING, None),
    (State.RUNNING, REMOVED, 15, State.ENDED, "removed"),
    (State.RUNNING, NEVER, 15, State.ENDED, "given-up"),
]


@pytest.mark.proves("R2")
@pytest.mark.parametrize(("state", "look", "seconds", "state_after", "end"), TABLE)
def test_a_round(
    guarded: World, state: State, look: Look, seconds: float, state_after: State, end: str | None
) -> None:
    before = guarded.lease("ada", state)
    guarded.engine.looks["ada"] = look

    guarded.round(after(seconds))
    if look is NEVER and state_after is State.ENDED:  # without any record: at the second look
        assert guarded.read("ada") == before
        guarded.round()

    lease = guarded.read("ada")
    assert lease.state is state_after
    was_cleared = ("clear", "ada") in guarded.engine.calls
    assert was_cleared is (end is not None and not isinstance(look, Absent))
    if end is not None:
        code, source = END[end]
        assert lease.reason is not None
        assert (lease.reason.code, lease.finished_source) == (code, source)
        proof = look.evidence if isinstance(look, Finished | Absent) else NEVER.evidence
        assert lease.finished_at == proof.finished_at
        assert lease.ended_at == after(seconds)
        # What it held is free at once.
        again = guarded.broker.request(claim("ben"), guarded.now)
        assert again.slices == before.slices
    elif state_after is not state:
        assert lease.running_at == after(3)
    else:
        assert lease.slices == before.slices


@pytest.mark.proves("R2")
def test_a_hub_that_died_before_it_wrote_down_that_its_server_runs(guarded: World) -> None:
    """Long before the time for the start is over; a hub that lives is left the time to do it."""
    lease = guarded.lease("ada", State.GRANTED)
    guarded.broker.bind(lease, "c1", T0)
    guarded.engine.looks["ada"] = RUNNING
    since = LEAVE_RUN_TO_HUB + timedelta(seconds=3)
    guarded.round(T0 + since - timedelta(seconds=1))
    assert guarded.read("ada").state is State.GRANTED
    guarded.round(T0 + since)
    ran = guarded.read("ada")
    assert (ran.state, ran.running_at, ran.run_id) == (State.RUNNING, after(3), "c1")

    guarded.broker.run(lease, after(3), guarded.now)  # the hub's own word, should it come late

    assert guarded.read("ada") == ran


@pytest.mark.parametrize("look", [RUNNING, MADE, FINISHED, REMOVED, NEVER])
@pytest.mark.parametrize("again", [None, 150])
def test_what_is_to_end_is_cleared_and_keeps_the_reason_it_was_asked_with(
    guarded: World, look: Look, again: int | None
) -> None:
    guarded.lease("ada", State.ENDING, look_again_at=after(again) if again else None)
    guarded.engine.looks["ada"] = look
    is_there = not isinstance(look, Absent)
    if again and not is_there:  # a call that was given up may still be carried out until then
        guarded.round(after(again - 1))
        assert guarded.read("ada").state is State.ENDING
        assert ("clear", "ada") not in guarded.engine.calls

    guarded.round(after(again or 0) if not is_there else after(1))

    lease = guarded.read("ada")
    assert lease.state is State.ENDED
    assert lease.reason == reason(Code.STOPPED)
    proof = look if isinstance(look, Finished | Absent) else NEVER if look is MADE else AFTER_CLEAR
    assert lease.finished_source is proof.evidence.source
    assert lease.finished_at == proof.evidence.finished_at


def test_seen_alive_is_written_now_and_then(guarded: World) -> None:
    """It stands in for a finish time; a write for each lease and round would be too many."""
    guarded.lease("ada")
    guarded.engine.looks["ada"] = RUNNING
    seen = []
    for seconds in range(0, 100, 5):
        guarded.round(after(seconds))
        seen.append(guarded.read("ada").last_seen_at)
    every = int(SEEN_EVERY.total_seconds())
    assert seen == [after(seconds // every * every) for seconds in range(0, 100, 5)]


def test_what_ran_no_more_was_not_seen_alive(guarded: World) -> None:
    guarded.lease("ada")
    guarded.engine.looks["ada"] = RUNNING
    guarded.round(T0)
    guarded.engine.looks["ada"] = FINISHED
    guarded.round(after(12))
    guarded.round(after(12) + SEEN_EVERY - timedelta(seconds=20))
    assert guarded.read("ada").last_seen_at == T0


def test_other_hosts_and_unknown_engines_are_left_alone(guarded: World) -> None:
    guarded.lease("ada", engine="slurm")
    elsewhere = Guard(guarded.broker, {"docker": guarded.engine}, "tower", lambda: guarded.now)
    guarded.lease("ben")
    guarded.engine.looks["ben"] = FINISHED
    elsewhere.round()
    guarded.round(after(100))
    assert ("look", "ada") not in guarded.engine.calls
    assert guarded.read("ada").state is State.RUNNING
    assert guarded.read("ben").state is State.ENDED


def test_a_ledger_that_goes_away_in_a_round_is_said(
    guarded: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop above it tells it once, and tries again."""
    guarded.lease("ada")
    guarded.engine.looks["ada"] = FINISHED

    def away(*_: object) -> None:
        raise LedgerAwayError("locked")

    with monkeypatch.context() as patch:
        patch.setattr(Broker, "end", away)
        with pytest.raises(LedgerAwayError):
            guarded.round(after(100))
    guarded.round(after(101))
    assert guarded.read("ada").state is State.ENDED


def test_a_lease_that_changed_while_it_was_looked_at(
    guarded: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub ended it meanwhile; the guard finds a stale grant and goes on."""
    lease = guarded.lease("ada", State.GRANTED)

    def look_slowly(_: Engine, seen: Lease) -> Look:
        if seen.key.user == "ada":
            guarded.broker.end(lease.lease_id, reason(Code.STOPPED), NEVER.evidence, guarded.now)
        return RUNNING

    guarded.lease("ben", State.GRANTED)
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "look", look_slowly)
        guarded.round(after(EXPIRED))
    assert guarded.read("ada").state is State.ENDED
    assert guarded.read("ben").state is State.RUNNING


@pytest.mark.proves("P3")
def test_every_end_of_the_agents_is_in_its_name(guarded: World) -> None:
    lease = guarded.lease("ada")
    guarded.engine.looks["ada"] = FINISHED
    guarded.round(after(100))
    with guarded.broker.ledger.read() as books:
        (record,) = [x for x in books.audit(lease.lease_id) if x["action"] == "end"]
    assert record["actor"] == "agent"
    assert record["reason"] == reason(Code.EXITED, exit_code=3)
    assert record["detail"] == {"source": "engine", "exit_code": 3}
