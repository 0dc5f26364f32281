"""A lease's life from request to end, step by step, and the steps that are not allowed."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from gpuspawner.broker.broker import Broker, StaleGrantError
from gpuspawner.domain.leases import Evidence, InvalidTransitionError, Lease, Source, State
from gpuspawner.domain.reasons import Code, reason
from tests.broker.looks import actions, audit, everything, held, lease_of, state_of
from tests.builders import EXITED, NEVER_RAN, T0, WANTED, after, claim, device, inventory

EXPIRED = reason(Code.START_EXPIRED, seconds=600)


@pytest.fixture
def granted(broker: Broker) -> Lease:
    """The lease of ada, who got the only GPU."""
    broker.observe(inventory(device("a")), T0)
    return broker.request(claim("ada", image="base:1", start_seconds=90), after(1))


def in_state(broker: Broker, lease: Lease, state: State) -> None:
    """Take a granted lease on to a later state."""
    if state in (State.RUNNING, State.ENDING):
        broker.run(lease, after(2), after(2))
    if state is State.ENDING:
        broker.want_end(lease.lease_id, WANTED, after(3))
    if state is State.ENDED:
        broker.end(lease.lease_id, WANTED, NEVER_RAN, after(3))


@pytest.mark.proves("P3")
def test_a_whole_life_with_all_its_times_and_records(broker: Broker, granted: Lease) -> None:
    assert granted.state is State.GRANTED
    assert (granted.requested_at, granted.granted_at) == (after(1), after(1))
    assert granted.start_deadline == after(91)
    assert (granted.image, granted.run_id) == ("base:1", None)
    assert granted.fence == int(after(1).timestamp()) + 1
    assert [item.slice_id for item in granted.slices] == ["GPU-a"]
    broker.bind(granted, "c0ffee", after(2))
    bound = lease_of(broker, granted)
    assert (bound.state, bound.run_id, bound.last_seen_at) == (State.GRANTED, "c0ffee", after(2))
    broker.run(granted, after(3), after(4))
    running = lease_of(broker, granted)
    assert (running.state, running.running_at) == (State.RUNNING, after(3))
    broker.want_end(granted.lease_id, WANTED, after(5), look_again_at=after(65))
    ending = lease_of(broker, granted)
    assert (ending.state, ending.look_again_at, ending.reason) == (
        State.ENDING, after(65), WANTED,
    )  # fmt: skip
    assert held(broker) == {"GPU-a": granted.lease_id}
    broker.end(granted.lease_id, WANTED, EXITED, after(6))
    ended = lease_of(broker, granted)
    assert (ended.state, ended.ended_at, ended.reason) == (State.ENDED, after(6), WANTED)
    assert (ended.finished_at, ended.finished_source) == (EXITED.finished_at, Source.ENGINE)
    assert ended.slices == granted.slices  # what was held stays on record
    assert held(broker) == {}
    assert actions(broker, granted) == ["request", "grant", "bind", "run", "ending", "end"]
    records = audit(broker, granted)
    assert [record["actor"] for record in records] == ["user:ada", *["hub"] * 5]
    assert records[1]["detail"] == {"slices": ["GPU-a"]}
    assert records[-1]["detail"] == {"source": "engine", "exit_code": 0}
    assert [record["reason"] for record in records[-2:]] == [WANTED, WANTED]
    assert [record["at"] for record in records] == [after(n) for n in (1, 1, 2, 4, 5, 6)]


def test_a_start_that_never_ran(broker: Broker, granted: Lease) -> None:
    broker.detach(granted.lease_id, after(2))
    assert lease_of(broker, granted).detached_at == after(2)
    assert held(broker) == {"GPU-a": granted.lease_id}  # detaching gives nothing back
    broker.end(granted.lease_id, EXPIRED, NEVER_RAN, after(100))
    ended = lease_of(broker, granted)
    assert (ended.reason, ended.finished_at, ended.finished_source) == (
        EXPIRED, None, Source.NEVER_RAN,
    )  # fmt: skip


def test_the_end_keeps_the_reason_it_was_asked_with(broker: Broker, granted: Lease) -> None:
    forced = reason(Code.FORCED, actor="cho", note="fire drill")
    broker.want_end(granted.lease_id, forced, after(2))
    broker.want_end(granted.lease_id, WANTED, after(3))
    broker.end(granted.lease_id, reason(Code.EXITED, exit_code=143), EXITED, after(4))
    assert lease_of(broker, granted).reason == forced
    assert audit(broker, granted)[-1]["reason"] == forced


def test_the_latest_look_again_counts(broker: Broker, granted: Lease) -> None:
    """A create may still be under way: nobody who knows less may shorten the wait."""
    seen = []
    for given in (after(60), None, after(30), after(90)):
        broker.want_end(granted.lease_id, WANTED, after(2), look_again_at=given)
        seen.append(lease_of(broker, granted).look_again_at)
    assert seen == [after(60), after(60), after(60), after(90)]


@pytest.mark.parametrize("state", [State.GRANTED, State.RUNNING, State.ENDING])
def test_evidence_ends_a_lease_in_any_state_that_holds(
    broker: Broker, granted: Lease, state: State
) -> None:
    in_state(broker, granted, state)
    seen = Evidence(source=Source.LAST_SEEN, finished_at=after(4))
    broker.end(granted.lease_id, reason(Code.REMOVED), seen, after(5))
    ended = lease_of(broker, granted)
    assert ended.state is State.ENDED
    assert ended.reason == (WANTED if state is State.ENDING else reason(Code.REMOVED))
    assert held(broker) == {}


@pytest.mark.proves("R6")
@pytest.mark.parametrize("state", [State.RUNNING, State.ENDING, State.ENDED])
def test_no_container_is_bound_to_a_grant_that_is_over(
    broker: Broker, granted: Lease, state: State
) -> None:
    in_state(broker, granted, state)
    before = everything(broker), actions(broker)
    with pytest.raises(StaleGrantError, match=f"expected to be granted, and is {state}"):
        broker.bind(granted, "c0ffee", after(5))
    assert (everything(broker), actions(broker)) == before


@pytest.mark.proves("R6")
@pytest.mark.parametrize("state", [State.ENDING, State.ENDED])
def test_no_server_runs_for_a_grant_that_is_over(
    broker: Broker, granted: Lease, state: State
) -> None:
    in_state(broker, granted, state)
    before = everything(broker), actions(broker)
    with pytest.raises(StaleGrantError, match=f"lease {granted.lease_id} .*and is {state}"):
        broker.run(granted, after(5), after(5))
    assert (everything(broker), actions(broker)) == before


@pytest.mark.proves("R6")
def test_a_grant_is_told_by_its_fence(broker: Broker, granted: Lease) -> None:
    older = replace(granted, fence=0)
    with pytest.raises(StaleGrantError, match="with fence 0"):
        broker.bind(older, "c0ffee", after(2))
    with pytest.raises(StaleGrantError, match="with fence 0"):
        broker.run(older, after(2), after(2))


def test_who_waits_has_no_grant(broker: Broker, granted: Lease) -> None:
    waiting = broker.request(claim("ben", may_wait=True), after(2))
    assert (waiting.state, waiting.fence, waiting.slices) == (State.WAITING, None, ())
    with pytest.raises(StaleGrantError, match="and is waiting"):
        broker.bind(waiting, "c0ffee", after(3))
    with pytest.raises(StaleGrantError, match="and is waiting"):
        broker.run(waiting, after(3), after(3))


def test_a_lease_that_never_was(broker: Broker, granted: Lease) -> None:
    before = everything(broker), actions(broker)
    broker.detach(99, after(2))
    broker.want_end(99, WANTED, after(2))
    broker.end(99, WANTED, EXITED, after(2))
    broker.seen_alive([99], after(2))
    with pytest.raises(StaleGrantError, match="is gone"):
        broker.bind(replace(granted, lease_id=99), "c0ffee", after(2))
    assert (everything(broker), actions(broker)) == before


@pytest.mark.parametrize("state", [State.RUNNING, State.ENDING, State.ENDED])
def test_only_a_start_is_detached(broker: Broker, granted: Lease, state: State) -> None:
    in_state(broker, granted, state)
    before = everything(broker), actions(broker)
    broker.detach(granted.lease_id, after(5))
    assert (everything(broker), actions(broker)) == before


@pytest.mark.proves("R5")
def test_what_has_ended_stays_as_it_is(broker: Broker, granted: Lease) -> None:
    in_state(broker, granted, State.ENDED)
    before = everything(broker), actions(broker)
    broker.want_end(granted.lease_id, EXPIRED, after(9), look_again_at=after(10))
    broker.end(granted.lease_id, EXPIRED, EXITED, after(9))
    broker.seen_alive([granted.lease_id], after(9))
    assert (everything(broker), actions(broker)) == before


def test_who_waits_may_give_up_without_evidence(broker: Broker, granted: Lease) -> None:
    waiting = broker.request(claim("ben", may_wait=True), after(2))
    broker.detach(waiting.lease_id, after(3))
    gave_up = reason(Code.GIVEN_UP)
    broker.want_end(waiting.lease_id, gave_up, after(4))
    ended = lease_of(broker, waiting)
    assert (ended.state, ended.reason, ended.finished_source) == (State.ENDED, gave_up, None)
    assert actions(broker, waiting) == ["request", "detach", "refuse"]
    assert state_of(broker, granted) is State.GRANTED


def test_seen_alive_is_noted_for_who_holds(broker: Broker, granted: Lease) -> None:
    waiting = broker.request(claim("ben", may_wait=True), after(2))
    broker.seen_alive([granted.lease_id, waiting.lease_id], after(7))
    broker.seen_alive([], after(8))
    assert lease_of(broker, granted).last_seen_at == after(7)
    assert lease_of(broker, waiting).last_seen_at is None


@pytest.mark.proves("R6")
def test_fences_only_grow(broker: Broker, granted: Lease) -> None:
    fences = [granted.fence]
    lease = granted
    for number in range(3):
        broker.end(lease.lease_id, WANTED, NEVER_RAN, after(10 + number))
        lease = broker.request(claim("ada"), after(10 + number))
        fences.append(lease.fence)
    first = int(after(1).timestamp()) + 1  # above the second of the grant, and of all before
    assert fences == [first, *(int(after(10 + n).timestamp()) + 1 for n in range(3))]


Step = Callable[[Broker, Lease], object]
STEPS: dict[str, Step] = {
    "bind": lambda b, lease: b.bind(lease, "c0ffee", after(2)),
    "run": lambda b, lease: b.run(lease, after(2), after(3)),
    "detach": lambda b, lease: b.detach(lease.lease_id, after(2)),
    "want_end": lambda b, lease: b.want_end(
        lease.lease_id, WANTED, after(4), look_again_at=after(60)
    ),
    "end": lambda b, lease: b.end(lease.lease_id, WANTED, EXITED, after(5)),
    "settle": lambda b, _: b.settle(after(6)),
    "observe": lambda b, _: b.observe(inventory(device("a"), device("b")), after(6)),
    "cordon": lambda b, _: b.cordon("GPU-a", "fan", "cho", after(6)),
    "uncordon": lambda b, _: b.uncordon("GPU-a", "cho", after(6)),
    "seen_alive": lambda b, lease: b.seen_alive([lease.lease_id], after(6)),
}


@pytest.mark.proves("R5")
@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.parametrize("name", STEPS)
def test_a_call_repeated_changes_nothing_more(
    broker: Broker, granted: Lease, name: str, times: int
) -> None:
    broker.request(claim("ben", may_wait=True), after(1))
    step = STEPS[name]
    step(broker, granted)
    once = everything(broker), len([a for a in actions(broker) if a not in ("bind", "cordon")])
    for _ in range(times - 1):
        step(broker, granted)
    again = everything(broker), len([a for a in actions(broker) if a not in ("bind", "cordon")])
    assert again == once


def test_the_writer_refuses_a_state_that_may_not_follow(broker: Broker, granted: Lease) -> None:
    with broker.ledger.write() as books, pytest.raises(InvalidTransitionError):
        books.change_lease(granted.lease_id, State.ENDED, State.RUNNING)


def test_start_seconds_count_from_the_grant(broker: Broker, granted: Lease) -> None:
    waiting = broker.request(claim("ben", may_wait=True, start_seconds=60), after(2))
    assert waiting.start_deadline is None
    broker.end(granted.lease_id, WANTED, EXITED, after(500))
    assert lease_of(broker, waiting).start_deadline == after(500) + timedelta(seconds=60)
