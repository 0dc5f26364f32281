"""An engine with a proxy before it, and leases to look for."""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from gpuspawner.engines.docker.client import DockerEngine
from tests.doubles.fault_proxy import FaultProxy
from tests.rig.engine import OwnedEngine


@pytest.fixture
def proxy(engine: OwnedEngine) -> Iterator[FaultProxy]:
    """The way to the engine on which things go wrong."""
    with FaultProxy(engine.url) as proxy:
        yield proxy


@pytest.fixture
def open_engine() -> Iterator[Callable[..., DockerEngine]]:
    """Make our client for an address; ``timeout`` in seconds."""
    with contextlib.ExitStack() as stack:

        def make(url: str, *, timeout: float = 20, **settings: object) -> DockerEngine:
            ours = DockerEngine({"base_url": url, "timeout": timeout, **settings})
            stack.callback(ours.close)
            return ours

        yield make


@pytest.fixture
def docker_engine(engine: OwnedEngine, open_engine: Callable[..., DockerEngine]) -> DockerEngine:
    """Our client, straight to the engine."""
    return open_engine(engine.url)
