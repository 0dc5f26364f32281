"""A simulated lab with a state file: for tests of what it shows, and of what the file may say."""

import json

import pytest

from gpuspawner.domain.devices import HostId
from gpuspawner.gpus.simulated import SimulatedInventory
from gpuspawner.gpus.simulated_lab import Lab

HOST = HostId("host-a")
LAB = Lab(HOST, "mixed-lab")
TURING, OTHER_TURING, A100, H100 = LAB.devices
FIRST, SECOND, THIRD = (
    item.uuid for item in LAB.devices[A100].instances(LAB.devices[A100].initial)
)


@pytest.fixture
def state(tmp_path):
    return tmp_path / "state.json"


@pytest.fixture
def inventory(state):
    return SimulatedInventory(HOST, "mixed-lab", state)


@pytest.fixture
def see(inventory, at):
    return lambda uuid: device(inventory, at, uuid)


def device(inventory, at, uuid):
    return next(d for d in inventory.look(at()).devices if d.uuid == uuid)


def written(state):
    """The processes in the state file."""
    return json.loads(state.read_text()).get("processes", [])
