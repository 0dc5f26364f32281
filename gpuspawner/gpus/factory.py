"""Which inventory a host has: its real GPUs, or a simulated lab."""

from pathlib import Path

from gpuspawner.domain.devices import HostId
from gpuspawner.gpus.inventory import Inventory
from gpuspawner.gpus.nvml import NVMLInventory
from gpuspawner.gpus.simulated import SimulatedInventory


def open_inventory(
    host_id: HostId, simulate: str | None = None, state_path: Path | None = None
) -> Inventory:
    """Open a host's inventory. Nothing of the hardware is touched before the first look.

    Args:
        host_id: the host whose devices these are.
        simulate: a simulated lab by its preset's name; ``None`` for real GPUs.
        state_path: the simulated lab's state file; real GPUs have none.

    Raises:
        ValueError: no preset of that name; the sentence lists those that there are.
    """
    if simulate is not None:
        return SimulatedInventory(host_id, simulate, state_path)
    return NVMLInventory(host_id)
