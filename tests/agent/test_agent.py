"""The agent's loops: they end on stop, and no bad round ends them."""

import logging
import threading

import pytest

from gpuspawner.broker.broker import Broker
from gpuspawner.ledger.store import LedgerAwayError
from tests.agent.agent_world import AgentWorld
from tests.builders import T0
from tests.rig.processes import wait_for


def test_both_loops_work_until_the_stop(world: AgentWorld) -> None:
    with world.running():
        world.guard.wait_for(5)
        first = wait_for("an inventory", world.hosts)[0].observed_at
        wait_for("a later one", lambda: world.hosts()[0].observed_at > first)
    assert [device.model for device in world.hosts()[0].devices]
    assert world.hosts()[0].simulated
    assert world.inventory.closed == 1
    assert not [t for t in threading.enumerate() if t.name in ("observe", "books")]


def test_a_stop_does_not_wait_for_the_pause(world: AgentWorld) -> None:
    world.agent = world.make(observe_seconds=3600, guard_seconds=3600, reconcile_seconds=3600)
    Broker(world.ledger, "agent").observe(world.inventory.look(T0), T0)
    with world.running():
        wait_for("a round", lambda: world.guard.count)
    assert world.guard.count == 1


def test_a_round_that_fails_is_not_the_last(
    world: AgentWorld, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise KeyError("a bug")

    with world.running():
        world.guard.work = world.inventory.work = fail
        world.guard.wait_for(3)
        world.guard.work = world.inventory.work = lambda: None
        world.guard.wait_for(2)
        wait_for("an inventory", world.hosts)
    assert "a round failed; trying again" in caplog.text


@pytest.mark.proves("R14")
def test_a_device_that_hangs_delays_no_leases_end(world: AgentWorld) -> None:
    go = threading.Event()
    world.inventory.work = lambda: go.wait(20)  # type: ignore[assignment,return-value]
    with world.running():
        world.guard.wait_for(20)
        assert world.hosts() == ()
        go.set()
        wait_for("an inventory", world.hosts)


@pytest.mark.proves("R13")
def test_a_ledger_that_is_away_is_told_once_and_found_again(
    world: AgentWorld, caplog: pytest.LogCaptureFixture
) -> None:
    def away() -> None:
        raise LedgerAwayError("locked")

    with caplog.at_level(logging.INFO), world.running():
        world.guard.work = away
        world.guard.wait_for(5)
        world.guard.work = lambda: None
        world.guard.wait_for(2)
    said = [record.getMessage() for record in caplog.records if record.threadName == "books"]
    assert said == ["the ledger is away; trying again: locked", "the ledger is back"]
