"""The guard when an engine, a lease or the ledger makes trouble."""

import itertools
import logging

import pytest

from gpuspawner.domain.leases import State
from gpuspawner.engines.look import (
    EngineRefusedError,
)
from tests.agent.guard_world import (
    FINISHED,
    REMOVED,
    RUNNING,
    UNKNOWN,
    World,
)
from tests.builders import after


@pytest.mark.proves("P2", "R2", "R3")
@pytest.mark.parametrize("state", [State.GRANTED, State.RUNNING, State.ENDING])
def test_unknown_is_not_gone(
    guarded: World, state: State, caplog: pytest.LogCaptureFixture
) -> None:
    """However long the engine is silent; and it is told once, not in each round."""
    before = guarded.lease("ada", state)
    guarded.engine.looks["ada"] = UNKNOWN
    with caplog.at_level(logging.INFO):
        for n in range(5):
            guarded.round(after(10_000 * n))
    assert guarded.read("ada") == before
    assert [r.getMessage() for r in caplog.records if "does not answer" in r.getMessage()] == [
        "engine docker does not answer; its leases stay held: silence"
    ]

    guarded.engine.looks["ada"] = REMOVED
    with caplog.at_level(logging.INFO):
        guarded.round()
    assert "engine docker answers again" in caplog.text
    assert guarded.read("ada").state is State.ENDED


def test_a_silent_engine_is_asked_once_a_round_and_silences_no_other(guarded: World) -> None:
    """Each question costs a time limit; the other engine's leases are looked at all the same."""
    for user in ("ada", "ben"):
        guarded.lease(user)
        guarded.engine.looks[user] = UNKNOWN
    guarded.lease("cho", engine="process")
    guarded.other.looks["cho"] = FINISHED
    guarded.round(after(100))
    assert guarded.engine.calls == [("list", ""), ("look", "ada")]
    assert guarded.read("cho").state is State.ENDED
    assert {guarded.read(user).state for user in ("ada", "ben")} == {State.RUNNING}


@pytest.mark.parametrize(
    "error", [EngineRefusedError("no", 403), KeyError("State"), ValueError("odd time")]
)
@pytest.mark.parametrize("order", list(itertools.permutations(("ada", "ben", "cho"))))
def test_one_lease_that_fails_does_not_stop_the_others(
    guarded: World, error: Exception, order: tuple[str, ...]
) -> None:
    for user in order:
        guarded.lease(user)
        guarded.engine.looks[user] = FINISHED
    guarded.engine.looks["ben"] = error
    guarded.round(after(100))
    assert {user: str(guarded.read(user).state) for user in order} == {
        "ada": "ended", "ben": "running", "cho": "ended",
    }  # fmt: skip
    guarded.engine.looks["ben"] = FINISHED
    guarded.round()
    assert guarded.read("ben").state is State.ENDED


@pytest.mark.parametrize("error", [UNKNOWN, EngineRefusedError("no", 409)])
def test_a_clearing_that_fails_ends_nothing_and_is_tried_again(
    guarded: World, error: Exception
) -> None:
    guarded.lease("ada", State.ENDING)
    guarded.engine.looks["ada"] = RUNNING
    guarded.engine.clear_fails = error
    guarded.round(after(1))
    assert guarded.read("ada").state is State.ENDING
    guarded.engine.clear_fails = None
    guarded.round()
    assert guarded.read("ada").state is State.ENDED


@pytest.mark.proves("P2", "R2")
def test_a_server_that_is_still_there_after_the_clearing_keeps_its_lease(guarded: World) -> None:
    guarded.lease("ada", State.ENDING)
    guarded.engine.looks["ada"] = RUNNING
    guarded.engine.clear_does_nothing = True
    for n in range(3):
        guarded.round(after(n))
    assert guarded.read("ada").state is State.ENDING
    assert guarded.read("ada").slices
