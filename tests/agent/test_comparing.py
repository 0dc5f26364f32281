"""When the agent compares everything, and that books which are new wait for it."""

import logging
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gpuspawner.broker.broker import Broker
from gpuspawner.domain.reasons import Code, RefusedError
from gpuspawner.engines.look import EngineUnknownError
from gpuspawner.ledger.store import Ledger, LedgerAwayError
from tests.agent.agent_world import AgentWorld, Rounds
from tests.builders import T0, claim, inventory, sharing_policy
from tests.rig.processes import wait_for

pytestmark = pytest.mark.proves("R4")
LONG = 3600


def held(rounds: Rounds, came: threading.Event | None = None) -> threading.Event:
    """Let each round wait until the test lets it go on; ``came`` is set when one does."""
    go, came = threading.Event(), came or threading.Event()

    def wait() -> None:
        came.set()
        go.wait(20)

    rounds.work = wait
    return go


def is_real(world: AgentWorld) -> None:
    """Let the devices be real ones for whoever looks."""
    look = world.inventory.look
    world.inventory.look = lambda now: replace(look(now), simulated=False)  # type: ignore[method-assign]


@pytest.mark.proves("P1")
def test_new_books_hand_nothing_out_before_everything_was_compared(world: AgentWorld) -> None:
    broker = Broker(world.ledger, "hub")
    broker.publish(sharing_policy(), "hub", T0)
    go = held(world.reconciler)
    with world.running():
        wait_for("the comparison", lambda: world.reconciler.count)
        world.guard.wait_for(0)
        assert world.hosts() == ()
        with pytest.raises(RefusedError) as refused:
            broker.request(claim("ben"), T0)
        assert refused.value.reason.code is Code.INVENTORY_AWAY
        go.set()
        wait_for("an inventory", world.hosts)
    assert broker.request(claim("ben"), T0).slices


@pytest.mark.proves("P1")
def test_a_ledger_that_is_made_anew_beside_a_running_agent_is_new_to_it(
    world: AgentWorld, tmp_path: Path
) -> None:
    """Somebody deleted it and restarted the hub."""
    with world.running():
        wait_for("an inventory", world.hosts)
        came = threading.Event()
        go = held(world.reconciler, came)
        assert came.wait(20)
        for file in tmp_path.glob("ledger.sqlite*"):
            file.unlink()
        with closing(Ledger(f"sqlite:///{tmp_path}/ledger.sqlite")) as hubs, hubs.read():
            pass
        # The comparison that is under way read the former books, and does not count.
        count = world.reconciler.count
        wait_for("new books", lambda: not world.hosts())
        go.set()
        wait_for("an inventory", world.hosts)
        assert world.reconciler.count > count


@pytest.mark.proves("P2")
def test_a_silent_engine_may_run_anything_on_real_devices(
    world: AgentWorld, caplog: pytest.LogCaptureFixture
) -> None:
    is_real(world)
    world.reconciler.answers = False
    with caplog.at_level(logging.WARNING), world.running():
        world.reconciler.wait_for(5)
        assert world.hosts() == ()
        world.reconciler.answers = True
        wait_for("an inventory", world.hosts)
    said = [r.getMessage() for r in caplog.records if "do not know this host" in r.getMessage()]
    assert len(said) == 1


def test_a_simulated_lab_needs_no_engine(world: AgentWorld) -> None:
    world.reconciler.answers = False
    with world.running():
        wait_for("an inventory", world.hosts)


def test_books_that_know_the_host_are_not_kept_waiting(world: AgentWorld) -> None:
    """A restart beside a silent engine must not make the load unknown."""
    is_real(world)
    Broker(world.ledger, "agent").observe(inventory(), T0)
    go = held(world.reconciler)
    with world.running():
        wait_for("a later one", lambda: world.hosts()[0].observed_at > T0)
        go.set()


def test_a_stop_ends_the_wait(world: AgentWorld) -> None:
    is_real(world)
    world.reconciler.answers = False
    with world.running():
        world.reconciler.wait_for(2)
    assert world.hosts() == ()


def test_after_the_first_observation_everything_is_compared_again(world: AgentWorld) -> None:
    """Who uses which device could not be told before."""
    world.agent = world.make(reconcile_seconds=LONG)
    known: list[bool] = []
    world.reconciler.work = lambda: known.append(bool(world.hosts()))
    with world.running():
        wait_for("a comparison that knows the devices", lambda: True in known)
    assert known[0] is False


def test_it_compares_now_and_then(world: AgentWorld) -> None:
    world.agent = world.make(reconcile_seconds=0.05)  # each fifth round
    with world.running():
        world.reconciler.wait_for(4)
    assert world.guard.count > world.reconciler.count


def quiet(world: AgentWorld) -> None:
    """Wait until only an event makes it compare."""
    wait_for("an inventory", world.hosts)
    seen = -1
    while seen != world.reconciler.count:
        seen = world.reconciler.count
        world.guard.wait_for(5)


@pytest.mark.parametrize(
    ("event", "compares"),
    [("create", True), ("start", True), ("die", False), ("destroy", False)],
)
def test_what_comes_is_compared_at_once_and_what_goes_is_looked_at(
    world: AgentWorld, event: str, compares: bool
) -> None:
    world.agent = world.make(reconcile_seconds=LONG)
    with world.running():
        quiet(world)
        count = world.reconciler.count
        world.events.told.put(event)
        world.guard.wait_for(3)
        wait_for("the event", world.events.told.empty)
        world.guard.wait_for(3)
        assert (world.reconciler.count > count) is compares


def test_an_event_wakes_a_guard_that_pauses(world: AgentWorld) -> None:
    world.agent = world.make(guard_seconds=LONG, reconcile_seconds=LONG)
    with world.running():
        wait_for("an inventory", world.hosts)
        count = world.guard.count
        world.events.told.put("die")
        wait_for("a round", lambda: world.guard.count > count)


@pytest.mark.parametrize("gap", [EngineUnknownError("cut"), KeyError("odd event"), None])
def test_after_a_gap_of_the_events_everything_is_compared(
    world: AgentWorld, gap: Exception | None
) -> None:
    world.agent = world.make(reconcile_seconds=LONG)
    with world.running():
        quiet(world)
        count, streams = world.reconciler.count, world.events.streams
        world.events.told.put(gap)
        wait_for("a comparison", lambda: world.reconciler.count > count)
        wait_for("another stream", lambda: world.events.streams > streams)


@pytest.mark.parametrize("answers", [True, False])
def test_an_engine_that_falls_silent_or_comes_back_is_compared_at_once(
    world: AgentWorld, answers: bool
) -> None:
    world.guard.answers = not answers
    world.agent = world.make(reconcile_seconds=LONG)
    with world.running():
        quiet(world)
        count = world.reconciler.count
        world.guard.answers = answers
        wait_for("a comparison", lambda: world.reconciler.count > count)


@pytest.mark.proves("R13")
@pytest.mark.parametrize("error", [LedgerAwayError("locked"), KeyError("a bug")])
@pytest.mark.parametrize("part", ["guard", "reconciler"])
def test_a_comparison_that_fails_is_made_up_for(
    world: AgentWorld, error: Exception, part: str
) -> None:
    def fail() -> None:
        raise error

    world.agent = world.make(reconcile_seconds=LONG)
    with world.running():
        quiet(world)
        getattr(world, part).work = fail
        world.events.told.put("create")
        getattr(world, part).wait_for(2)
        count = world.reconciler.count
        getattr(world, part).work = lambda: None
        wait_for("the comparison", lambda: world.reconciler.count > count)
