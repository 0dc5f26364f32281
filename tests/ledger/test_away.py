"""A ledger that cannot be used is one kind of error, and nothing is written by halves."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from gpuspawner.ledger.store import Ledger, LedgerAwayError
from tests.builders import T0, claim
from tests.ledger.children import (
    child,
    die_inside_a_write,
    heard,
    hold_the_write_lock,
    outcome,
    write_as_nobody,
    write_on_a_full_disk,
)
from tests.rig.postgres import PostgresServer

Opener = Callable[..., Ledger]


def made(url: str) -> str:
    assert outcome(url) == "written"
    return url


@pytest.mark.proves("R13")
def test_locked_by_another_process_for_longer_than_we_wait(
    ledger_url: str, open_ledger: Opener
) -> None:
    ledger = open_ledger(ledger_url, busy_seconds=0.2)
    with ledger.read() as books:
        assert books.living() == []
    with child(hold_the_write_lock, ledger_url) as pipe:
        assert heard(pipe) == "inside"
        with pytest.raises(LedgerAwayError, match=r"locked|lock timeout"), ledger.write():
            pytest.fail("two writers at once")
        pipe.send("leave")
    with ledger.write() as books:
        assert books.next_fence() == 2


def test_locked_by_another_thread_for_longer_than_we_wait(
    ledger_url: str, open_ledger: Opener
) -> None:
    ledger = open_ledger(ledger_url, busy_seconds=0.2)
    inside, leave = threading.Event(), threading.Event()

    def hang() -> None:
        with ledger.write():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=hang)
    thread.start()
    assert inside.wait(60)
    with pytest.raises(LedgerAwayError, match="busy"), ledger.write():
        pytest.fail("two writers at once")
    leave.set()
    thread.join()
    with ledger.write() as books:
        assert books.next_fence() == 1


def test_a_writer_that_was_killed_holds_nobody_up(ledger_url: str, open_ledger: Opener) -> None:
    made(ledger_url)
    with child(die_inside_a_write, ledger_url, exit_code=-signal.SIGKILL) as pipe:
        assert heard(pipe) == "inside"
    with open_ledger(ledger_url).write() as books:
        assert [lease.key.user for lease in books.recent()] == ["ada"]
        assert books.next_fence() == 1


def test_a_folder_that_does_not_exist(tmp_path: Path, open_ledger: Opener) -> None:
    ledger = open_ledger(f"sqlite:///{tmp_path}/none/ledger.sqlite")
    for use in (ledger.write, ledger.read):
        with pytest.raises(LedgerAwayError, match=r"none/ledger\.sqlite"), use():  # type: ignore[operator]
            pytest.fail("opened")
    (tmp_path / "none").mkdir()
    with ledger.write() as books:
        assert books.next_fence() == 1


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    assert outcome(f"sqlite:///{tmp_path}") == "away"


@pytest.mark.parametrize("content", [b"this is no database, whatever its name says " * 100])
def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "ledger.sqlite"
    file.write_bytes(content)
    assert outcome(f"sqlite:///{file}") == "away"
    assert file.read_bytes() == content


@pytest.mark.proves("R13")
def test_a_file_that_may_not_be_written(tmp_path: Path, sqlite_url: str) -> None:
    open_the_way_to(tmp_path)
    made(sqlite_url)
    (tmp_path / "ledger.sqlite").chmod(0o444)
    with child(write_as_nobody, sqlite_url) as pipe:
        assert heard(pipe) == "away"


def test_a_folder_that_may_not_be_written(tmp_path: Path, sqlite_url: str) -> None:
    open_the_way_to(tmp_path)
    with child(write_as_nobody, sqlite_url) as pipe:
        assert heard(pipe) == "away"
    assert list(tmp_path.iterdir()) == []


def open_the_way_to(folder: Path) -> None:
    """Let everybody look into the folder, and nobody but its owner write."""
    folder.chmod(0o755)
    for parent in folder.parents:
        if parent.stat().st_uid == os.geteuid() and "pytest" in parent.name:
            parent.chmod(0o755)
    if os.geteuid() != 0:
        folder.chmod(0o555)


@pytest.mark.proves("P3", "R13")
def test_a_full_disk_takes_whole_transactions_only(sqlite_url: str, open_ledger: Opener) -> None:
    with child(write_on_a_full_disk, sqlite_url, 300_000) as pipe:
        written, how = heard(pipe)
    assert how == "away"
    with open_ledger(sqlite_url).read() as books:
        assert len(books.living()) == written > 0
        assert written % 5 == 0


@pytest.mark.proves("R13")
@pytest.mark.postgresql
def test_a_stopped_server_and_its_return(open_ledger: Opener) -> None:
    with PostgresServer() as server:
        ledger = open_ledger(server.make_database(), busy_seconds=2.0)
        with ledger.write() as books:
            books.add_lease(claim("ada"), T0)
        server.stop()
        for use in (ledger.write, ledger.read):
            with pytest.raises(LedgerAwayError), use():  # type: ignore[operator]
                pytest.fail("opened")
        assert outcome(ledger.url.render_as_string(hide_password=False)) == "away"
        server.start()
        with ledger.write() as books:
            assert [lease.key.user for lease in books.living()] == ["ada"]
        ledger.close()


@pytest.mark.postgresql
def test_a_server_that_crashes_inside_a_transaction(open_ledger: Opener) -> None:
    with PostgresServer() as server:
        ledger = open_ledger(server.make_database())
        with pytest.raises(LedgerAwayError):
            crash_inside(ledger, server)
        server.start()
        with ledger.read() as books:
            assert books.recent() == []
        ledger.close()


def crash_inside(ledger: Ledger, server: PostgresServer) -> None:
    with ledger.write() as books:
        books.add_lease(claim("ada"), T0)
        server.kill()


@pytest.mark.postgresql
def test_a_server_that_takes_no_writes(postgres_url: str, open_ledger: Opener) -> None:
    made(postgres_url)
    name = postgres_url.rpartition("/")[2]
    engine = create_engine(postgres_url)
    with engine.begin() as connection:
        connection.execute(text(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'))
    engine.dispose()
    assert outcome(postgres_url) == "away"
    with open_ledger(postgres_url).read() as books:
        assert [lease.key.user for lease in books.living()] == ["ada"]


def test_what_is_said_has_no_statement_and_no_name_in_it(
    ledger_url: str, open_ledger: Opener
) -> None:
    ledger = open_ledger(ledger_url, busy_seconds=0.1)
    made(ledger_url)
    with child(hold_the_write_lock, ledger_url) as pipe:
        assert heard(pipe) == "inside"
        with pytest.raises(LedgerAwayError) as caught, ledger.write() as books:
            books.add_lease(claim("cho"), T0)
        pipe.send("leave")
    said = str(caught.value)
    assert "cho" not in said
    assert "BEGIN" not in said
    assert "SELECT" not in said
