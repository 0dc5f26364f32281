"""Fixtures of the agent's tests."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpuspawner.broker.invariants import broken_promises
from gpuspawner.ledger.store import Ledger
from tests.agent.agent_world import AgentWorld
from tests.agent.guard_world import World


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        ledger = Ledger(f"sqlite:///{tmp_path}/ledger.sqlite")
        stack.callback(ledger.close)
        yield World(ledger)
        assert broken_promises(ledger) == []


@pytest.fixture
def world(tmp_path: Path) -> Iterator[AgentWorld]:
    """An agent that nobody runs yet."""
    world = AgentWorld(tmp_path)
    yield world
    world.ledger.close()
