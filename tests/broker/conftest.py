"""A broker over a fresh ledger; after each test all promises are checked."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuspawner.broker.broker import Broker
from gpuspawner.broker.invariants import broken_promises
from gpuspawner.ledger.store import Ledger
from tests.broker.reconcile_world import Site
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
def site(ledger: Ledger) -> Site:
    """A site whose engines are scripts."""
    return Site(ledger)


@pytest.fixture
def make_books(
    request: pytest.FixtureRequest, ledger_url: str, open_ledger: Callable[..., Ledger],
    tmp_path: Path,
) -> Iterator[Callable[[], Ledger]]:  # fmt: skip
    """Make books that know nothing, of the same kind; the promises must hold in them too."""
    made: list[Ledger] = []

    def make() -> Ledger:
        if ledger_url.startswith("sqlite"):
            url = f"sqlite:///{tmp_path}/other{len(made)}.sqlite"
        else:
            url = request.getfixturevalue("make_database")()
        made.append(open_ledger(url))
        return made[-1]

    yield make
    for each in made:
        assert broken_promises(each) == []
