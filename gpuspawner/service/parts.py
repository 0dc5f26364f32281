"""How a part does that the service needs, and since when."""

from collections.abc import Callable
from datetime import datetime
from enum import StrEnum


class PartState(StrEnum):
    """How a part does. Not known is not degraded: nobody has looked, or nobody could."""

    OK = "ok"
    DEGRADED = "degraded"
    UNKNOWN = "unknown"


class Part:
    """One part's state, with the time since which it has been so."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        """Begin as not known."""
        self._clock = clock
        self.state = PartState.UNKNOWN
        self.since = clock()

    def become(self, state: PartState) -> bool:
        """Take a state; return whether it is another one than before."""
        if state is self.state:
            return False
        self.state, self.since = state, self._clock()
        return True
