"""What is known of servers: tables of one engine's word, and properties over any."""

from dataclasses import replace
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.domain.knowledge import WORD_HOLDS_FOR, Knowledge, Unknown, Why
from gpuspawner.domain.leases import HOLDING, Lease, State
from gpuspawner.domain.reconciliation import EngineState
from tests.builders import T0, WHOLE, after, device, hold_of, inventory, key

NOW = after(3600)
LAB = inventory(device("a"), device("b", index=1))


def lease(state: State = State.RUNNING, *, granted: float = 0, seen: float = 3590) -> Lease:
    """Make a lease of a device of the lab, last seen alive that many seconds after T0."""
    made = Lease(
        lease_id=1, key=key("ada"), state=state, profile=WHOLE, image=None, engine="docker",
        requested_at=after(granted), granted_at=after(granted),
        slices=(hold_of(1, "GPU-a").slice,),
    )  # fmt: skip
    if state not in (State.RUNNING, State.ENDING):
        return made
    return replace(made, running_at=after(granted), last_seen_at=after(seen))


def word(
    *, answered: float | None = None, silent: float | None = None, host: str = "lab",
    engine: str = "docker",
) -> EngineState:  # fmt: skip
    """Make how an engine answered, in seconds after T0."""
    return EngineState(
        host_id=host,
        engine=engine,
        answered_at=None if answered is None else after(answered),
        silent_since=None if silent is None else after(silent),
    )


def of(asked: Lease, *states: EngineState, now: datetime = NOW) -> Unknown | None:
    return Knowledge(states, [LAB], now).of(asked)


@pytest.mark.proves("P5")
@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (word(answered=3595), None),
        (word(answered=3510), None),
        (word(answered=3700), None),  # another machine's clock is ahead
        (word(answered=3509), Unknown(why=Why.AGENT_AWAY, since=after(3509))),
        (word(answered=3000, silent=3010), Unknown(why=Why.ENGINE_SILENT, since=after(3000))),
        (word(answered=3595, silent=3598), Unknown(why=Why.ENGINE_SILENT, since=after(3595))),
        (word(silent=3010), Unknown(why=Why.ENGINE_SILENT, since=after(3010))),
        (word(), Unknown(why=Why.NOT_OBSERVED)),
    ],
)
def test_an_engine_is_known_while_the_agents_word_holds(
    state: EngineState, expected: Unknown | None
) -> None:
    assert Knowledge([state], [LAB], NOW).of_engine(state) == expected


@pytest.mark.proves("P2", "P5")
@pytest.mark.parametrize("state", sorted(HOLDING))
def test_whoever_holds_is_unknown_while_its_engine_is_silent(state: State) -> None:
    silent = word(answered=3000, silent=3010)
    assert of(lease(state, seen=2990), silent) == Unknown(why=Why.ENGINE_SILENT, since=after(3000))


@pytest.mark.parametrize("state", [State.WAITING, State.ENDED])
def test_without_a_server_there_is_nothing_to_know(state: State) -> None:
    for states in ((), (word(silent=1),), (word(answered=3595),)):
        asked = replace(lease(State.GRANTED), state=state)
        assert of(asked, *states) is None
        assert not Knowledge(states, [LAB], NOW).shows_running(asked)


def test_before_any_agent_has_looked_nothing_is_since_when() -> None:
    assert of(lease()) == Unknown(why=Why.NOT_OBSERVED, since=None)
    assert of(lease(), word(answered=3595, engine="process")) == Unknown(why=Why.NOT_OBSERVED)
    assert of(lease(), word(answered=3595, host="tower")) == Unknown(why=Why.NOT_OBSERVED)


def test_it_is_not_unknown_since_before_the_grant_or_the_last_sight() -> None:
    silent = word(answered=3000, silent=3010)
    assert of(lease(State.GRANTED, granted=3200), silent) == Unknown(
        why=Why.ENGINE_SILENT, since=after(3200)
    )
    assert of(lease(seen=3300), silent) == Unknown(why=Why.ENGINE_SILENT, since=after(3300))


def test_of_an_engine_that_answers_and_shows_others_only() -> None:
    """Such as an engine that was set up anew: its "there is none" is no evidence."""
    answers = word(answered=3595)
    assert of(lease(seen=3510), answers) is None
    assert of(lease(seen=3509), answers) == Unknown(why=Why.NOT_SHOWN, since=after(3509))
    # What has not run yet is seen by nobody: an image may be fetched for a long time.
    assert of(lease(State.GRANTED), answers) is None


def test_a_host_with_a_new_name_keeps_its_leases_known() -> None:
    renamed = replace(LAB, host_id="tower")
    states = [word(answered=100), word(answered=3595, host="tower")]
    assert Knowledge(states, [LAB, renamed], NOW).of(lease()) is None
    away = [word(answered=100), word(answered=3000, silent=3010, host="tower")]
    assert Knowledge(away, [LAB, renamed], NOW).of(lease(seen=2990)) == Unknown(
        why=Why.ENGINE_SILENT, since=after(3000)
    )


def test_only_a_fresh_word_shows_that_a_server_runs() -> None:
    answers = Knowledge([word(answered=3595)], [LAB], NOW)
    assert answers.shows_running(lease())
    assert answers.shows_running(lease(State.ENDING))
    assert not answers.shows_running(lease(State.GRANTED))
    assert not answers.shows_running(lease(seen=3000))
    assert not Knowledge([word(answered=3595, silent=3598)], [LAB], NOW).shows_running(lease())
    assert not Knowledge([], [LAB], NOW).shows_running(lease())


def test_only_an_engine_that_answered_or_is_needed_is_missed() -> None:
    """An agent asks for Docker also where nobody ever installed it."""
    never, before, answers = word(silent=10), word(answered=5, silent=10), word(answered=3595)
    for state, living, missed in (
        (never, [], False), (never, [lease()], True), (never, [lease(State.GRANTED)], True),
        (never, [replace(lease(State.GRANTED), state=State.WAITING)], False),
        (before, [], True), (answers, [lease()], False), (word(answered=5), [], True),
    ):  # fmt: skip
        assert Knowledge([state], [LAB], NOW).is_missed(state, living) is missed
    other = word(silent=10, engine="process")
    assert not Knowledge([never, other], [LAB], NOW).is_missed(other, [lease()])


SECONDS = st.one_of(st.none(), st.integers(-100, 5000))
STATES = st.lists(
    st.builds(
        word,
        answered=SECONDS,
        silent=SECONDS,
        host=st.sampled_from(["lab", "tower"]),
        engine=st.sampled_from(["docker", "process"]),
    ),
    max_size=4,
)


@pytest.mark.proves("P5")
@given(states=STATES, seen=st.integers(0, 3600), state=st.sampled_from(sorted(State)))
def test_no_news_is_never_good_news(states: list[EngineState], seen: int, state: State) -> None:
    asked = lease(state, seen=seen)
    knowledge = Knowledge(states, [LAB], NOW)
    found = knowledge.of(asked)
    fresh = [
        each for each in {(s.host_id, s.engine): s for s in states}.values()
        if (each.host_id, each.engine) == ("lab", "docker") and each.silent_since is None
        and each.answered_at is not None and NOW - each.answered_at <= WORD_HOLDS_FOR
    ]  # fmt: skip
    if state not in HOLDING:
        assert found is None
    elif not fresh:
        assert found is not None
    if found is not None:
        assert (found.since is None) == (found.why is Why.NOT_OBSERVED)
        assert found.since is None or found.since >= max(T0, asked.last_seen_at or T0)
    assert knowledge.shows_running(asked) <= bool(fresh)
