"""The steps of a process that a test may hold, fail or end, one by one and without threads."""

import asyncio
from collections.abc import Callable
from typing import Any

from gpuspawner.engines.lanes import Lanes
from gpuspawner.ledger.store import LedgerAwayError
from gpuspawner.steps import Steps


class DeadError(BaseException):
    """The process was killed: no handler of its own runs."""


class FaultySteps(Steps):
    """Kills a process, takes its ledger away, or lets others go on, at the n-th of its next steps.

    ``meanwhile`` is what others do, before the call to the engine that comes after so many others.
    """

    def __init__(self) -> None:
        self.meanwhile: tuple[int, Callable[[], None]] | None = None
        self.is_dead = False
        self.dies_after: int | None = None
        self.away_after: int | None = None

    def clear(self) -> None:
        """Let nothing more happen."""
        self.dies_after = self.away_after = self.meanwhile = None

    def at(self, name: str) -> None:
        if self.dies_after is not None:
            self.is_dead = self.is_dead or self.dies_after <= 0
            self.dies_after -= 1
        if self.is_dead:
            raise DeadError(name)
        if self.away_after is not None and name.startswith("ledger:"):
            self.away_after -= 1
            if self.away_after < 0:
                self.away_after = None
                raise LedgerAwayError(f"away at {name}")
        if self.meanwhile is not None and name.startswith("engine:") and name.endswith(":before"):
            left, others = self.meanwhile
            self.meanwhile = None if left <= 0 else (left - 1, others)
            if left <= 0:
                others()
                if self.is_dead:  # they may have ended it
                    raise DeadError(name)


class Gate:
    """Where calls wait until the test lets them go on."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[None]] = []

    async def passed(self) -> None:
        place = asyncio.get_running_loop().create_future()
        self.waiting.append(place)
        await place

    def open(self, pick: int) -> None:
        self.waiting.pop(pick % len(self.waiting)).set_result(None)


class StepLanes(Lanes):
    """Lanes without threads: a call is carried out when the test opens the gate for it."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(1)
        self._gate = gate

    async def _after(
        self, before: asyncio.Task[object] | None, call: Callable[..., Any], *args: object
    ) -> Any:
        if before is not None:
            await asyncio.wait([before])
        await self._gate.passed()
        return call(*args)
