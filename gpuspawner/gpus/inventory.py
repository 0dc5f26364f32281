"""The seam to hardware: anything that can say what devices a host has."""

from datetime import datetime
from typing import Protocol

from gpuspawner.domain.devices import HostInventory


class Inventory(Protocol):
    """One host's devices, asked anew at each look. Calls block: run them in a thread."""

    def look(self, now: datetime) -> HostInventory:
        """Return what is there. Never raises for hardware's sake: trouble is part of the answer."""
        ...

    def close(self) -> None:
        """Let go of the hardware, so that an operator may reset it."""
        ...
