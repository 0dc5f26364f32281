"""A server that its hub has forgotten gives its GPU back, and nobody else's does."""

from datetime import timedelta
from typing import Any

import pytest

from gpuspawner.agent.forgotten import Forgotten
from gpuspawner.agent.hub import HubAwayError, HubServers, hub_servers_from_environment
from gpuspawner.domain.endings import FORGOTTEN_AFTER
from gpuspawner.domain.leases import State
from gpuspawner.domain.reasons import Code, reason
from tests.agent.guard_world import World
from tests.builders import after

pytestmark = pytest.mark.proves("R4")
SECONDS = FORGOTTEN_AFTER.total_seconds()


class Hub(HubServers):
    """A hub that says what the test wants."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1/hub/api", "token")
        self.says: set[tuple[str, str]] | HubAwayError = set()

    def servers(self) -> set[tuple[str, str]]:
        if isinstance(self.says, HubAwayError):
            raise self.says
        return self.says


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
def forgotten(guarded: World, hub: Hub) -> Forgotten:
    return Forgotten(guarded.broker, hub, lambda: frozenset({"hub"}), lambda: guarded.now)


def look(guarded: World, forgotten: Forgotten, seconds: float) -> State:
    guarded.now = after(seconds)
    forgotten.round()
    return guarded.read("ada").state


def test_what_its_hub_lacks_for_long_is_to_end(
    guarded: World, forgotten: Forgotten, hub: Hub
) -> None:
    guarded.lease("ada")
    guarded.lease("ben")
    hub.says = {("ben", "")}
    assert look(guarded, forgotten, 100) is State.RUNNING
    assert look(guarded, forgotten, 100 + SECONDS - 1) is State.RUNNING
    assert look(guarded, forgotten, 100 + SECONDS) is State.ENDING
    assert guarded.read("ada").reason == reason(Code.FORGOTTEN, minutes=10)
    assert guarded.read("ben").state is State.RUNNING


def test_one_whole_answer_that_has_it_begins_the_time_anew(
    guarded: World, forgotten: Forgotten, hub: Hub
) -> None:
    guarded.lease("ada")
    look(guarded, forgotten, 100)
    hub.says = {("ada", "")}
    look(guarded, forgotten, 130)
    hub.says = set()
    assert look(guarded, forgotten, 100 + SECONDS) is State.RUNNING
    assert look(guarded, forgotten, 100 + 2 * SECONDS) is State.ENDING


def test_a_hub_that_does_not_answer_says_nothing(
    guarded: World, forgotten: Forgotten, hub: Hub
) -> None:
    guarded.lease("ada")
    look(guarded, forgotten, 100)
    hub.says = HubAwayError("500")
    for seconds in (200, 100 + SECONDS, 10 * SECONDS):
        assert look(guarded, forgotten, seconds) is State.RUNNING
    hub.says = set()
    assert look(guarded, forgotten, 11 * SECONDS) is State.RUNNING


@pytest.mark.parametrize("state", [State.GRANTED, State.ENDING])
def test_who_is_on_the_way_is_none_of_it(
    guarded: World, forgotten: Forgotten, state: State
) -> None:
    before = guarded.lease("ada", state)
    look(guarded, forgotten, 100)
    assert look(guarded, forgotten, 100 + SECONDS) is state
    assert guarded.read("ada").reason == before.reason


def test_another_hubs_servers_are_that_hubs(guarded: World, hub: Hub) -> None:
    guarded.lease("ada")
    other = Forgotten(guarded.broker, hub, lambda: frozenset({"other"}), lambda: guarded.now)
    look(guarded, other, 100)
    assert look(guarded, other, 100 + 2 * SECONDS) is State.RUNNING


def test_the_limit_is_long_enough_to_mend_a_hub() -> None:
    assert timedelta(minutes=5) <= FORGOTTEN_AFTER


def test_there_is_no_hub_to_ask_without_an_address_or_a_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values: dict[str, Any] = {"JUPYTERHUB_API_URL": "http://127.0.0.1:1/hub/api"}
    monkeypatch.delenv("JUPYTERHUB_API_TOKEN", raising=False)
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    assert hub_servers_from_environment() is None
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "token")
    assert hub_servers_from_environment() is not None
