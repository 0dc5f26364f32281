"""The agent's loops: they end on stop, and no bad round ends them."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpuspawner.agent.agent import Agent
from gpuspawner.broker.broker import Broker
from gpuspawner.domain.devices import HostInventory
from gpuspawner.gpus.simulated import SimulatedInventory
from gpuspawner.ledger.store import Ledger, LedgerAwayError
from tests.rig.processes import wait_for


class Rounds:
    """A guard that counts its rounds, and does what the test wants in them."""

    def __init__(self) -> None:
        self.count = 0
        self.work: Callable[[], None] = lambda: None

    def round(self) -> None:
        self.count += 1
        self.work()

    def wait_for(self, more: int) -> None:
        until = self.count + more
        wait_for(f"{more} rounds", lambda: self.count >= until)


class Sight(SimulatedInventory):
    """A simulated lab that counts how often it is closed."""

    closed = 0
    work: Callable[[], None] = staticmethod(lambda: None)

    def look(self, now: datetime) -> HostInventory:
        self.work()
        return super().look(now)

    def close(self) -> None:
        self.closed += 1
        super().close()


class World:
    def __init__(self, folder: Path) -> None:
        self.ledger = Ledger(f"sqlite:///{folder}/ledger.sqlite", busy_seconds=0.1)
        self.inventory = Sight("lab", "mixed-lab")
        self.guard: Any = Rounds()
        self.agent = Agent(
            Broker(self.ledger, "agent"), self.inventory, self.guard, lambda: datetime.now(UTC),
            observe_seconds=0.01, guard_seconds=0.01,
        )  # fmt: skip

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self.agent.run)
        thread.start()
        try:
            yield
        finally:
            self.agent.stop()
            thread.join(20)
            assert not thread.is_alive()

    def hosts(self) -> tuple[HostInventory, ...]:
        with self.ledger.read() as books:
            return books.hosts()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.ledger.close()


def test_both_loops_work_until_the_stop(world: World) -> None:
    with world.running():
        world.guard.wait_for(5)
        first = wait_for("an inventory", world.hosts)[0].observed_at
        wait_for("a later one", lambda: world.hosts()[0].observed_at > first)
    assert [device.model for device in world.hosts()[0].devices]
    assert world.hosts()[0].simulated
    assert world.inventory.closed == 1
    assert not [t for t in threading.enumerate() if t.name in ("observe", "guard")]


def test_a_stop_does_not_wait_for_the_pause(world: World) -> None:
    slow = Agent(
        Broker(world.ledger, "agent"), world.inventory, world.guard, lambda: datetime.now(UTC),
        observe_seconds=3600, guard_seconds=3600,
    )  # fmt: skip
    world.agent = slow
    with world.running():
        world.guard.wait_for(1)
    assert world.guard.count == 1


def test_a_round_that_fails_is_not_the_last(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise KeyError("a bug")

    with world.running():
        world.guard.work = world.inventory.work = fail
        world.guard.wait_for(3)
        world.guard.work = world.inventory.work = lambda: None
        world.guard.wait_for(2)
        wait_for("an inventory", world.hosts)
    assert "a round failed; trying again" in caplog.text


def test_a_device_that_hangs_delays_no_leases_end(world: World) -> None:
    go = threading.Event()
    world.inventory.work = lambda: go.wait(20)  # type: ignore[assignment,return-value]
    with world.running():
        world.guard.wait_for(20)
        assert world.hosts() == ()
        go.set()
        wait_for("an inventory", world.hosts)


def test_a_ledger_that_is_away_is_told_once_and_found_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def away() -> None:
        raise LedgerAwayError("locked")

    with caplog.at_level(logging.INFO), world.running():
        world.guard.work = away
        world.guard.wait_for(5)
        world.guard.work = lambda: None
        world.guard.wait_for(2)
    said = [record.getMessage() for record in caplog.records if record.threadName == "guard"]
    assert said == ["the ledger is away; trying again: locked", "the ledger is back"]
