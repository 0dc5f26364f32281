"""A broker over a fresh ledger; after each test all promises are checked."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuspawner.broker.broker import Broker
from gpuspawner.broker.invariants import broken_promises
from gpuspawner.ledger.store import Ledger
from tests.builders import T0, sharing_policy
from tests.ledger.conftest import at_once, ledger_url, open_ledger, sqlite_url

__all__ = ["at_once", "ledger_url", "open_ledger", "sqlite_url"]


@pytest.fixture
def ledger(ledger_url: str, open_ledger: Callable[..., Ledger]) -> Iterator[Ledger]:
    """A fresh ledger of each kind; every promise must hold when the test is over."""
    opened = open_ledger(ledger_url)
    yield opened
    assert broken_promises(opened) == []


@pytest.fixture
def broker(ledger: Ledger) -> Broker:
    """A broker of the hub, which has published that every device may be shared."""
    made = Broker(ledger, "hub")
    made.publish(sharing_policy(), "hub", T0)
    return made


@pytest.fixture
def make_other_url(
    request: pytest.FixtureRequest, ledger_url: str, tmp_path: Path
) -> Callable[[], str]:
    """Name further empty databases, of the same kind as the test's own."""
    if ledger_url.startswith("sqlite"):
        numbers = itertools.count()
        return lambda: f"sqlite:///{tmp_path}/other{next(numbers)}.sqlite"
    make: Callable[[], str] = request.getfixturevalue("make_database")
    return make
