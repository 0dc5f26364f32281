"""An agent whose guard, reconciler and events are scripts, on a real ledger."""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from gpuspawner.agent.agent import Agent
from gpuspawner.agent.guard import Guard
from gpuspawner.agent.sampler import Sampler
from gpuspawner.broker.broker import Broker
from gpuspawner.broker.reconcile import Reconciler
from gpuspawner.domain.devices import HostInventory
from gpuspawner.gpus.origins import Origins
from gpuspawner.gpus.simulated import SimulatedInventory
from gpuspawner.ledger.store import Ledger
from tests.rig.processes import wait_for


class Rounds:
    """A guard, or a reconciler, that counts its rounds and does what the test wants in them."""

    def __init__(self) -> None:
        self.count = 0
        self.answers = True
        self.work: Callable[[], None] = lambda: None

    def round(self) -> bool:
        self.count += 1
        self.work()
        return self.answers

    def wait_for(self, more: int) -> None:
        until = self.count + more
        wait_for(f"{more} rounds", lambda: self.count >= until)


class Events:
    """The engine's events, as the test tells them; the stream ends when it is broken."""

    def __init__(self) -> None:
        self.told: queue.Queue[str | Exception | None] = queue.Queue()
        self.streams = 0

    def watch(self, on_event: Callable[[str], None]) -> None:
        self.streams += 1
        while (event := self.told.get()) is not None:
            if isinstance(event, Exception):
                raise event
            on_event(event)


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


class AgentWorld:
    """The parts of an agent, and the agent."""

    def __init__(self, folder: Path) -> None:
        self.ledger = Ledger(f"sqlite:///{folder}/ledger.sqlite", busy_seconds=5)
        self.inventory = Sight("lab", "mixed-lab")
        self.guard, self.reconciler, self.events = Rounds(), Rounds(), Events()
        self.agent = self.make()

    def make(self, **seconds: float) -> Agent:
        every = {"observe_seconds": 0.01, "guard_seconds": 0.01, "reconcile_seconds": 0.05}
        guard, reconciler = cast(Guard, self.guard), cast(Reconciler, self.reconciler)
        broker = Broker(self.ledger, "agent")
        sampler = Sampler(broker, self.inventory, Origins(), dict)
        return Agent(
            broker, sampler, guard, reconciler, self.events.watch, lambda: datetime.now(UTC),
            **(every | seconds),
        )  # fmt: skip

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self.agent.run)
        thread.start()
        try:
            yield
        finally:
            self.agent.stop()
            self.events.told.put(None)
            thread.join(20)
            assert not thread.is_alive()

    def hosts(self) -> tuple[HostInventory, ...]:
        with self.ledger.read() as books:
            return books.hosts()
