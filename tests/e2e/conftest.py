"""Fixtures of whole sites."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.fault_proxy import FaultProxy
from tests.e2e.lab import Lab, LabSettings, open_lab
from tests.rig.engine import OwnedEngine
from tests.rig.hub import HubProcess


@pytest.fixture
def make_lab(
    engine: OwnedEngine, make_hub: Callable[..., HubProcess], stub_image: str, tmp_path: Path
) -> Iterator[Callable[..., Lab]]:
    """Make labs; each is checked against the promises when the test is over."""
    with contextlib.ExitStack() as stack:

        def make(image: str = stub_image, **changes: Any) -> Lab:
            folder = tmp_path / f"lab{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            lab_engine = changes.pop("on", engine)
            settings = LabSettings(**changes)
            return stack.enter_context(open_lab(lab_engine, make_hub, image, folder, settings))

        yield make


@pytest.fixture
def proxy(engine: OwnedEngine) -> Iterator[FaultProxy]:
    """A way to the engine that a test can spoil; `through` leads hub and agent there."""
    with FaultProxy(engine.url) as proxy:
        yield proxy
