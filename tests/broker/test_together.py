"""Writes that wait for each other go into one transaction, and none suffers for another."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event

from gpuspawner.broker.broker import Broker, StaleGrantError
from gpuspawner.broker.invariants import broken_promises
from gpuspawner.domain.leases import State
from gpuspawner.domain.reasons import Code, RefusedError
from gpuspawner.ledger.store import Ledger, LedgerAwayError
from tests.broker.looks import held
from tests.builders import NEVER_RAN, T0, WANTED, after, claim, device, inventory
from tests.rig.processes import wait_for

Calls = dict[str, Callable[[], Any]]


class Commits:
    """Counts what a ledger commits."""

    def __init__(self, ledger: Ledger) -> None:
        self.count = 0
        writing, _ = ledger._opened()
        event.listen(writing, "commit", self._one)

    def _one(self, _connection: object) -> None:
        self.count += 1


@contextmanager
def all_in_line(broker: Broker, calls: Calls) -> Iterator[dict[str, Future[Any]]]:
    """Let calls come to wait behind one that stands in its transaction; it ends with the block."""
    inside, go = threading.Event(), threading.Event()

    def hold(_books: object) -> None:
        inside.set()
        assert go.wait(30)

    with ThreadPoolExecutor(len(calls) + 1) as threads:
        first = threads.submit(broker._write, "settle", hold)
        assert inside.wait(10)
        futures = {name: threads.submit(call) for name, call in calls.items()}
        line = broker._together._line
        wait_for("all to stand in line", lambda: len(line) == len(calls), 10)
        try:
            yield futures
        finally:
            go.set()
            first.result(30)


def test_who_waits_shares_one_transaction_and_one_settlement(broker: Broker) -> None:
    broker.observe(inventory(*(device(name) for name in "abcd")), T0)
    commits = Commits(broker.ledger)
    people = [f"student-{number}" for number in range(6)]

    def ask(user: str) -> Callable[[], Any]:
        return lambda: broker.request(claim(user), after(1))

    with all_in_line(broker, {user: ask(user) for user in people}) as futures:
        pass
    granted = [name for name, future in futures.items() if future.exception(30) is None]
    refused = [future.exception() for name, future in futures.items() if name not in granted]
    assert commits.count == 2  # the one that all waited for, and theirs
    assert len(granted) == 4
    assert [error.reason.code for error in refused] == [Code.ALL_IN_USE] * 2  # type: ignore[union-attr]
    assert sorted(held(broker)) == ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]


def test_one_that_is_refused_takes_nothing_of_the_others_with_it(broker: Broker) -> None:
    broker.observe(inventory(device("a"), device("b")), T0)
    old = broker.request(claim("ada"), after(1))
    broker.end(old.lease_id, WANTED, NEVER_RAN, after(2))
    present = broker.request(claim("ada"), after(3))
    calls: Calls = {
        "late": lambda: broker.bind(old, "c0ffee", after(4)),
        "twice": lambda: broker.request(claim("ada"), after(4)),
        "bind": lambda: broker.bind(present, "beef", after(4)),
        "other": lambda: broker.request(claim("ben"), after(4)),
    }
    with all_in_line(broker, calls) as futures:
        pass
    assert isinstance(futures["late"].exception(30), StaleGrantError)
    twice = futures["twice"].exception(30)
    assert isinstance(twice, RefusedError)
    assert twice.reason.code is Code.SERVER_HOLDS
    assert futures["bind"].exception(30) is None
    assert futures["other"].result(30).state is State.GRANTED
    with broker.ledger.read() as books:
        leases = {lease.key.user: lease for lease in books.living()}
    assert (leases["ada"].run_id, leases["ben"].state) == ("beef", State.GRANTED)


def test_a_commit_that_fails_fails_for_all_and_writes_nothing(broker: Broker) -> None:
    broker.observe(inventory(device("a"), device("b")), T0)
    writing, _ = broker.ledger._opened()

    commits: list[int] = []

    def fail(_connection: object) -> None:
        commits.append(1)
        if len(commits) == 2:  # the first is of the one that all wait for
            raise LedgerAwayError("disk full")

    def ask(user: str) -> Callable[[], Any]:
        return lambda: broker.request(claim(user), T0)

    with all_in_line(broker, {user: ask(user) for user in ("ada", "ben")}) as futures:
        event.listen(writing, "commit", fail)
    try:
        for future in futures.values():
            with pytest.raises(LedgerAwayError, match="disk full"):
                future.result(30)
    finally:
        event.remove(writing, "commit", fail)
    with broker.ledger.read() as books:
        assert books.recent() == []
    assert broker.request(claim("ada"), T0).state is State.GRANTED


def test_who_waits_too_long_leaves_the_line_and_nothing_is_written(
    open_ledger: Callable[..., Ledger], ledger_url: str
) -> None:
    ledger = open_ledger(ledger_url, busy_seconds=0.2)
    broker = Broker(ledger, "hub")
    broker.observe(inventory(device("a")), T0)
    with all_in_line(broker, {"ada": lambda: broker.request(claim("ada"), T0)}) as futures:
        with pytest.raises(LedgerAwayError, match="busy"):
            futures["ada"].result(30)
        assert broker._together._line == []
    with ledger.read() as books:
        assert books.recent() == []
    assert broker.request(claim("ada"), T0).state is State.GRANTED
    assert broken_promises(ledger) == []


def test_a_part_that_fails_unexpectedly_is_its_own_callers_trouble(broker: Broker) -> None:
    broker.observe(inventory(device("a")), T0)

    def broken(_books: object) -> None:
        raise ZeroDivisionError

    calls: Calls = {
        "broken": lambda: broker._write("settle", broken),
        "good": lambda: broker.request(claim("ada"), T0),
    }
    with all_in_line(broker, calls) as futures:
        pass
    assert isinstance(futures["broken"].exception(30), ZeroDivisionError)
    assert futures["good"].result(30).state is State.GRANTED


def test_a_transaction_that_cannot_even_begin_is_told_to_all(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.observe(inventory(device("a"), device("b")), T0)

    def ask(user: str) -> Callable[[], Any]:
        return lambda: broker.request(claim(user), T0)

    with (
        monkeypatch.context() as patch,
        all_in_line(broker, {user: ask(user) for user in ("ada", "ben")}) as futures,
    ):
        patch.setattr(Ledger, "write", cannot_begin)
    for future in futures.values():
        assert isinstance(future.exception(30), ZeroDivisionError)
    assert broker.request(claim("ada"), T0).state is State.GRANTED


def cannot_begin(_ledger: Ledger) -> None:
    raise ZeroDivisionError
