"""A guard on a real ledger, with engines that are scripts."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from gpuspawner.agent.guard import Guard
from gpuspawner.broker.broker import Broker
from gpuspawner.domain.leases import Evidence, Lease, Source, State
from gpuspawner.domain.reasons import Code, reason
from gpuspawner.domain.reconciliation import Found
from gpuspawner.engines.look import (
    Absent,
    EngineUnknownError,
    Finished,
    Look,
    Made,
    Running,
)
from gpuspawner.ledger.store import Ledger
from tests.builders import T0, after, claim, device, inventory, sharing_policy

RUNNING, MADE = Running(run_id="c1", started_at=after(3)), Made(run_id="c1")
OLD = Evidence(source=Source.ENGINE, finished_at=after(10), exit_code=3)
FINISHED = Finished(run_id="c1", evidence=OLD)
REMOVED = Absent(evidence=Evidence(source=Source.EVENTS, finished_at=after(10), exit_code=137))
NEVER = Absent(evidence=Evidence(source=Source.NEVER_RAN))
AFTER_CLEAR = Absent(evidence=Evidence(source=Source.EVENTS, finished_at=after(20), exit_code=143))
UNKNOWN = EngineUnknownError("silence")


class Engine:
    """Says what the test wants of each server, and writes down what it is asked."""

    def __init__(self) -> None:
        self.looks: dict[str, Look | Exception] = {}
        self.listed: list[Found] | Exception = []
        self.calls: list[tuple[str, str]] = []
        self.clear_fails: Exception | None = None
        self.clear_does_nothing = False

    def look(self, lease: Lease) -> Look:
        self.calls.append(("look", lease.key.user))
        sight = self.looks[lease.key.user]
        if isinstance(sight, Exception):
            raise sight
        return sight

    def clear(self, lease: Lease) -> None:
        self.calls.append(("clear", lease.key.user))
        if self.clear_fails:
            raise self.clear_fails
        if not self.clear_does_nothing:
            self.looks[lease.key.user] = AFTER_CLEAR

    def everything(self) -> Sequence[Found]:
        self.calls.append(("list", ""))
        if isinstance(self.listed, Exception):
            raise self.listed
        return self.listed

    def look_at(self, run_id: str) -> Look | None:
        raise AssertionError(f"the guard goes by leases, not by {run_id}")

    def clear_run(self, run_id: str) -> None:
        raise AssertionError(f"the guard clears leases, not {run_id}")

    def identity(self) -> str | None:
        return "the-engine"


class World:
    """A pool of four GPUs, a guard, and a clock that the test moves."""

    def __init__(self, ledger: Ledger) -> None:
        self.now = T0
        self.broker = Broker(ledger, "hub")
        self.engine, self.other = Engine(), Engine()
        self.guard = Guard(
            Broker(ledger, "agent"),
            {"docker": self.engine, "process": self.other},
            "lab",
            lambda: self.now,
        )
        self.broker.publish(sharing_policy(), "hub", T0)
        seen = inventory(*(device(f"g{n}", index=n) for n in range(4)))
        self.broker.observe(seen, T0)

    def lease(self, user: str, state: State = State.RUNNING, **values: Any) -> Lease:
        again = values.pop("look_again_at", None)
        granted = self.broker.request(claim(user, **values), self.now)
        if state is not State.GRANTED:
            self.broker.bind(granted, "c1", self.now)
            self.broker.run(self.read(user), after(3), self.now)
        if state is State.ENDING:
            self.broker.want_end(
                granted.lease_id, reason(Code.STOPPED), self.now, look_again_at=again
            )
        return self.read(user)

    def read(self, user: str) -> Lease:
        with self.broker.ledger.read() as books:
            return books.of_user("hub", user)[0]

    def round(self, at: datetime | None = None) -> bool:
        self.now = at or self.now
        return self.guard.round()
