"""Transactions: begun as promised, all or nothing, readers not waiting for writers."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event, text

from gpuspawner.ledger.store import Ledger
from tests.builders import T0, claim
from tests.ledger.children import child, heard, hold_the_write_lock

Opener = Callable[..., Ledger]


def pragmas(books: Any) -> dict[str, Any]:
    names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
    connection = books._connection
    return {name: connection.execute(text(f"PRAGMA {name}")).scalar_one() for name in names}


@pytest.mark.proves("P3")
def test_pragmas_are_in_force_on_both_engines(sqlite_url: str, open_ledger: Opener) -> None:
    ledger = open_ledger(sqlite_url, busy_seconds=3.0)
    expected = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 3000}
    with ledger.write() as books:
        assert pragmas(books) == expected
    with ledger.read() as books:
        assert pragmas(books) == expected


def test_a_write_begins_immediately_and_a_read_does_not(
    sqlite_url: str, open_ledger: Opener
) -> None:
    ledger = open_ledger(sqlite_url)
    with ledger.read():
        pass
    sent: list[str] = []
    for engine in ledger._opened():
        event.listen(
            engine, "before_cursor_execute", lambda *args: sent.append(args[2].split(" ")[0:2])
        )  # fmt: skip
    with ledger.write() as books:
        books.next_fence()
    with ledger.read() as books:
        books.policy()
    firsts = [words for words in sent if words[0] == "BEGIN"]
    assert firsts == [["BEGIN", "IMMEDIATE"], ["BEGIN", "DEFERRED"]]
    assert sent[0] == ["BEGIN", "IMMEDIATE"]


@pytest.mark.proves("R1")
def test_a_write_that_only_reads_holds_off_other_writers_already(
    sqlite_url: str, open_ledger: Opener
) -> None:
    """With a deferred begin, two could read the same state before either writes."""
    first, second = open_ledger(sqlite_url), open_ledger(sqlite_url, busy_seconds=0.0)
    with second.read():
        pass
    with first.write() as books:
        books.living()
        with pytest.raises(Exception, match="locked"), second.write():
            pytest.fail("two writers at once")


@pytest.mark.postgresql
def test_postgresql_writes_lock_the_pool_row(postgres_url: str, open_ledger: Opener) -> None:
    first, second = open_ledger(postgres_url), open_ledger(postgres_url, busy_seconds=0.1)
    with second.read():
        pass
    with first.write() as books:
        books.living()
        with pytest.raises(Exception, match="lock timeout"), second.write():
            pytest.fail("two writers at once")


def test_a_read_does_not_wait_for_a_writer_and_sees_what_was_committed(
    ledger: Ledger, ledger_url: str
) -> None:
    with ledger.write() as books:
        books.add_lease(claim("ada"), T0)
    with child(hold_the_write_lock, ledger_url) as pipe:
        assert heard(pipe) == "inside"
        with ledger.read() as books:
            assert [lease.key.user for lease in books.living()] == ["ada"]
        pipe.send("leave")


def test_a_read_is_of_one_moment(ledger: Ledger) -> None:
    with ledger.read() as books:
        assert books.living() == []
        with ledger.write() as other:
            other.add_lease(claim("ada"), T0)
            other.add_audit(at=T0, actor="hub", action="request", lease_id=1)
        assert books.living() == []
        assert books.audit() == []
    with ledger.read() as books:
        assert len(books.living()) == len(books.audit()) == 1


def write_and_fail(ledger: Ledger) -> None:
    with ledger.write() as books:
        books.add_lease(claim("ada"), T0)
        books.add_audit(at=T0, actor="hub", action="request", lease_id=1)
        books.save_cordon("GPU-a", "fan", "cho", T0)
        books.next_fence()
        _ = 1 / 0


def test_nothing_is_written_when_something_fails_inside(ledger: Ledger) -> None:
    with ledger.write() as books:
        kept = books.add_lease(claim("ben"), T0)
    with pytest.raises(ZeroDivisionError):
        write_and_fail(ledger)
    with ledger.read() as books:
        assert [lease.lease_id for lease in books.recent()] == [kept]
        assert books.audit() == []
        assert books.cordons() == {}
    with ledger.write() as books:
        assert books.next_fence() == 1


@pytest.mark.postgresql
def test_a_read_cannot_write(postgres_url: str, open_ledger: Opener) -> None:
    ledger = open_ledger(postgres_url)
    with pytest.raises(Exception, match="read-only"), ledger.read() as books:
        books._connection.execute(text("UPDATE pool SET fence = 7"))


def test_writers_of_one_process_take_turns(
    ledger: Ledger, at_once: Callable[..., list[int]]
) -> None:
    inside = threading.Semaphore(1)

    def write(_: int) -> int:
        with ledger.write() as books:
            assert inside.acquire(blocking=False), "two writers at once"
            fence = books.next_fence()
            inside.release()
        return fence

    assert sorted(at_once(write, range(12))) == list(range(1, 13))


def test_writers_of_two_ledgers_take_turns(
    ledger_url: str, open_ledger: Opener, at_once: Callable[..., list[int]]
) -> None:
    ledgers = [open_ledger(ledger_url) for _ in range(4)]

    def write(ledger: Ledger) -> list[int]:
        fences = []
        for _ in range(10):
            with ledger.write() as books:
                fences.append(books.next_fence())
        return fences

    taken = [fence for fences in at_once(write, ledgers) for fence in fences]  # type: ignore[attr-defined]
    assert sorted(taken) == list(range(1, 41))
