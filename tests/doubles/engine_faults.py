"""Faults of an engine's answers: lists that got shorter, events that come twice, late or never."""

import json
import random
from collections.abc import Callable
from typing import Any

from tests.doubles.faults import Stream, without

CREATE = r"/containers/create"
EVENTS = r"/events"
INSPECT = r"/containers/[^/?]+/json"
LIST = r"/containers/json"

Event = dict[str, Any]
# Which events: a share of them (0 to 1) by chance, or those of which this is true.
Which = float | Callable[[Event], bool]


def without_container(*names: str) -> Callable[[list[Any]], list[Any]]:
    """Return a change of the engine's list that leaves out the containers of these names."""
    return without(lambda each: any(name.lstrip("/") in names for name in each["Names"]))


class EventTrouble:
    """What happens to the events of ``GET /events``: ``fault("GET", EVENTS, stream=trouble)``.

    Args:
        seed: Of what is left to chance; the same events with the same seed have the same trouble.
        drop: Which events are lost: a share of them (0 to 1), or those of which this is true.
        twice: Which of the others come twice.
        window: So many events are gathered and given in another order; fewer after
            ``window_seconds``.
        delay: How many seconds late each event comes; the order stays.
        cut_after: A stream is cut after so many events.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        drop: Which = 0,
        twice: Which = 0,
        window: int = 1,
        window_seconds: float = 0.5,
        delay: float = 0,
        cut_after: int | None = None,
    ) -> None:
        self._chance = random.Random(seed)
        self._drop, self._twice = drop, twice
        self.window, self.window_seconds = window, window_seconds
        self.delay, self.cut_after = delay, cut_after
        self.came: list[Event] = []  # what the engine told
        self.given: list[Event] = []  # what clients were told

    def __call__(self) -> Stream:
        """Return the trouble of one stream."""
        return _TroubledEvents(self)

    def copies(self, event: Event) -> int:
        """Return how many times an event is given on."""
        if self._is_among(self._drop, event):
            return 0
        return 2 if self._is_among(self._twice, event) else 1

    def _is_among(self, which: Which, event: Event) -> bool:
        return which(event) if callable(which) else self._chance.random() < which

    def shuffle(self, lines: list[bytes]) -> None:
        """Put events into another order."""
        self._chance.shuffle(lines)


class _TroubledEvents:
    def __init__(self, trouble: EventTrouble) -> None:
        self._trouble = trouble
        self._gathered: list[bytes] = []
        self._gathered_since = 0.0
        self._queue: list[tuple[float, bytes]] = []  # when each is due, in their order
        self._given = 0

    @property
    def is_over(self) -> bool:
        cut_after = self._trouble.cut_after
        return cut_after is not None and self._given >= cut_after

    def take(self, line: bytes, now: float) -> None:
        event = json.loads(line)
        self._trouble.came.append(event)
        if not self._gathered:
            self._gathered_since = now
        self._gathered += [line] * self._trouble.copies(event)
        if len(self._gathered) >= self._trouble.window:
            self._order(now)

    def _order(self, now: float) -> None:
        if self._trouble.window > 1:
            self._trouble.shuffle(self._gathered)
        self._queue += [(now + self._trouble.delay, line) for line in self._gathered]
        self._gathered = []

    def due(self, now: float, *, ended: bool = False) -> list[bytes]:
        if ended or now >= self._gathered_since + self._trouble.window_seconds:
            self._order(now)
        lines = [line for at, line in self._queue if ended or at <= now]
        del self._queue[: len(lines)]
        if self._trouble.cut_after is not None:
            lines = lines[: self._trouble.cut_after - self._given]
        self._given += len(lines)
        self._trouble.given += map(json.loads, lines)
        return lines

    def wait_seconds(self, now: float) -> float | None:
        moments = [at for at, _ in self._queue[:1]]
        if self._gathered:
            moments.append(self._gathered_since + self._trouble.window_seconds)
        return max(0.0, min(moments) - now) if moments else None
