"""A fresh ledger for each test, on SQLite and on PostgreSQL."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from gpuspawner.ledger.store import Ledger


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The address of a SQLite ledger that does not exist yet."""
    return f"sqlite:///{tmp_path}/ledger.sqlite"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def ledger_url(request: pytest.FixtureRequest) -> str:
    """The address of an empty database, of each kind."""
    name = "sqlite_url" if request.param == "sqlite" else "postgres_url"
    url: str = request.getfixturevalue(name)
    return url


@pytest.fixture
def open_ledger() -> Iterator[Callable[..., Ledger]]:
    """Open ledgers that are closed after the test."""
    with ExitStack() as stack:

        def make(url: str, **values: float) -> Ledger:
            ledger = Ledger(url, **values)
            stack.callback(ledger.close)
            return ledger

        yield make


@pytest.fixture
def ledger(ledger_url: str, open_ledger: Callable[..., Ledger]) -> Ledger:
    """A fresh ledger of each kind."""
    return open_ledger(ledger_url)


@pytest.fixture
def at_once() -> Callable[..., list[Any]]:
    """Call a function with each of some arguments, all at the same moment."""

    def call(work: Callable[[Any], Any], arguments: Iterable[Any]) -> list[Any]:
        each = list(arguments)
        line = Barrier(len(each), timeout=60)

        def start(argument: Any) -> Any:
            line.wait()
            return work(argument)

        with ThreadPoolExecutor(len(each)) as threads:
            return list(threads.map(start, each))

    return call
