"""What the guard takes from the engine's list, and when it believes that something is gone."""

from dataclasses import replace

import pytest

from gpuspawner.domain.leases import Evidence, Lease, Source, State
from gpuspawner.domain.reconciliation import Found
from gpuspawner.engines.look import Absent, EngineRefusedError, EngineUnknownError, Look
from tests.agent.guard_world import FINISHED, MADE, NEVER, REMOVED, RUNNING, UNKNOWN, World
from tests.builders import T0, WANTED, after, key

FORGOTTEN = Absent(evidence=Evidence(source=Source.LAST_SEEN, finished_at=T0))
EXPIRED = 10_000


def found(lease: Lease, **values: object) -> Found:
    given = Found(
        run_id="c1", name="nb", runs=True, made_at=T0, devices=("GPU-g0",), key=lease.key,
        fence=lease.fence,
    )  # fmt: skip
    return replace(given, **values)


def looks(guarded: World) -> int:
    return guarded.engine.calls.count(("look", "ada"))


def test_a_server_that_the_list_shows_is_not_looked_at_and_is_seen_alive(guarded: World) -> None:
    """Two hundred servers cost one question."""
    lease = guarded.lease("ada")
    guarded.engine.listed = [found(lease)]
    assert guarded.round(after(40))
    assert looks(guarded) == 0
    assert guarded.read("ada") == replace(lease, last_seen_at=after(40))


@pytest.mark.parametrize(
    "values",
    [
        {"runs": False},
        {"run_id": "c2"},
        {"fence": 7},
        {"fence": None},
        {"key": None},
        {"key": replace(key("ada"), hub_id="other")},
    ],
)
def test_whatever_else_the_list_shows_is_looked_into(
    guarded: World, values: dict[str, object]
) -> None:
    lease = guarded.lease("ada")
    guarded.engine.listed = [found(lease, **values)]
    guarded.engine.looks["ada"] = FINISHED
    guarded.round(after(100))
    assert looks(guarded) > 0
    assert guarded.read("ada").state is State.ENDED


@pytest.mark.parametrize("state", [State.GRANTED, State.ENDING])
def test_a_lease_that_waits_for_a_step_is_looked_at_though_its_server_runs(
    guarded: World, state: State
) -> None:
    lease = guarded.lease("ada", state)
    guarded.engine.listed = [found(lease)]
    guarded.engine.looks["ada"] = RUNNING
    guarded.round(after(EXPIRED))
    assert guarded.read("ada").state is (State.RUNNING if state is State.GRANTED else State.ENDED)


@pytest.mark.proves("P2", "R2")
@pytest.mark.parametrize("absent", [NEVER, FORGOTTEN])
@pytest.mark.parametrize("state", [State.RUNNING, State.GRANTED])
def test_absence_without_a_record_is_believed_at_the_second_look(
    guarded: World, absent: Look, state: State
) -> None:
    """A list that got short for a moment ends nothing, nor does one that does so now and then."""
    before = guarded.lease("ada", state)
    for seen in (absent, MADE, absent):
        guarded.engine.looks["ada"] = seen
        guarded.round(after(500))
        assert guarded.read("ada") == before
    at = after(EXPIRED)
    guarded.engine.looks["ada"] = absent
    guarded.round(at)
    assert guarded.read("ada").state is State.ENDED


def test_a_list_that_shows_it_again_takes_the_first_look_back(guarded: World) -> None:
    lease = guarded.lease("ada")
    for n in range(4):
        guarded.engine.listed = [found(lease)] if n % 2 else []
        guarded.engine.looks["ada"] = FORGOTTEN
        guarded.round(after(100 + n))
    assert guarded.read("ada").state is State.RUNNING


@pytest.mark.parametrize("state", [State.RUNNING, State.GRANTED, State.ENDING])
def test_a_record_of_the_end_is_believed_at_once(guarded: World, state: State) -> None:
    guarded.lease("ada", state)
    guarded.engine.looks["ada"] = REMOVED
    guarded.round(after(EXPIRED))
    assert guarded.read("ada").state is State.ENDED


def test_a_start_that_was_given_up_and_never_bound_ends_at_the_second_look(guarded: World) -> None:
    """Its container is looked for in the engine's list alone."""
    lease = guarded.lease("ada", State.GRANTED)
    guarded.broker.want_end(lease.lease_id, WANTED, T0)
    guarded.engine.looks["ada"] = NEVER
    guarded.round(after(1))
    assert guarded.read("ada").state is State.ENDING
    guarded.round(after(2))
    assert guarded.read("ada").state is State.ENDED


@pytest.mark.parametrize("error", [UNKNOWN, EngineRefusedError("not allowed", 403)])
def test_a_list_that_is_not_given_silences_that_engine_alone(
    guarded: World, error: Exception
) -> None:
    before = guarded.lease("ada")
    guarded.lease("ben", engine="process")
    guarded.engine.listed = error
    guarded.engine.looks["ada"] = guarded.other.looks["ben"] = FINISHED
    assert not guarded.round(after(100))
    assert guarded.read("ada") == before
    assert guarded.read("ben").state is State.ENDED
    guarded.engine.listed = []
    assert guarded.round(after(101))
    assert guarded.read("ada").state is State.ENDED


@pytest.mark.proves("P2")
def test_another_engines_no_is_unknown_however_often_it_says_so(guarded: World) -> None:
    """It answers, so that its other leases are looked at as ever."""
    before = guarded.lease("ada")
    guarded.lease("ben")
    guarded.engine.looks["ada"] = EngineUnknownError("made by another engine", answered=True)
    guarded.engine.looks["ben"] = FINISHED
    for n in range(3):
        assert guarded.round(after(100 + n))
    assert guarded.read("ada") == before
    assert guarded.read("ben").state is State.ENDED


def test_a_server_that_nobody_bound_is_bound_with_its_engine(guarded: World) -> None:
    """The hub was killed between create and record; only that engine knows of its end."""
    guarded.lease("ada", State.GRANTED)
    guarded.engine.looks["ada"] = RUNNING
    guarded.round(after(EXPIRED))
    lease = guarded.read("ada")
    assert (lease.state, lease.run_id, lease.engine_id) == (State.RUNNING, "c1", "the-engine")
    assert lease.running_at == after(3)
    assert lease.last_seen_at == after(EXPIRED)
