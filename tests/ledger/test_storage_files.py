"""A ledger whose file is removed, replaced or moved while it is open: nothing is lost silently."""

import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuspawner.ledger.store import Ledger, LedgerAwayError
from tests.builders import T0, claim, device, inventory
from tests.ledger.children import child, heard, outcome, write_leases
from tests.rig.processes import wait_for

pytestmark = pytest.mark.proves("P3", "R13")

Opener = Callable[..., Ledger]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


def users(ledger: Ledger) -> list[str]:
    with ledger.read() as books:
        return [lease.key.user for lease in books.living()]


def write(ledger: Ledger, user: str) -> None:
    with ledger.write() as books:
        books.add_lease(claim(user), T0)


def write_and(ledger: Ledger, then: Callable[[], None]) -> None:
    with ledger.write() as books:
        books.add_lease(claim("ben"), T0)
        then()


def take_away(file: Path) -> Path:
    """Move a ledger away with what belongs to it, as somebody does who starts afresh."""
    away = file.parent / "away"
    away.mkdir()
    for path in file.parent.glob("ledger.sqlite*"):
        path.rename(away / path.name)
    return away / file.name


def test_a_removed_file_is_away_and_is_not_begun_anew(
    file: Path, sqlite_url: str, open_ledger: Opener
) -> None:
    ledger = open_ledger(sqlite_url)
    write(ledger, "ada")
    away = take_away(file)
    for use in (ledger.write, ledger.read, ledger.write):
        gone = pytest.raises(LedgerAwayError, match=r"ledger\.sqlite is gone.*gpuspawner restore")
        with gone, use():  # type: ignore[operator]
            pytest.fail("opened")
    assert not file.exists()
    shutil.move(away, file)
    shutil.move(f"{away}-wal", f"{file}-wal")
    write(ledger, "ben")
    assert users(ledger) == ["ada", "ben"]
    assert users(open_ledger(sqlite_url)) == ["ada", "ben"]


def test_books_are_begun_anew_by_a_process_that_had_none(
    file: Path, sqlite_url: str, open_ledger: Opener
) -> None:
    ledger = open_ledger(sqlite_url)
    write(ledger, "ada")
    take_away(file)
    assert outcome(sqlite_url) == "written"
    assert users(ledger) == ["ada"]  # of the new one: `outcome` wrote her again
    write(ledger, "ben")
    assert users(open_ledger(sqlite_url)) == ["ada", "ben"]


def test_the_new_file_keeps_its_log_when_the_old_one_is_closed(
    file: Path, sqlite_url: str, open_ledger: Opener
) -> None:
    """The last to close a file removes its log, by name."""
    old, other = open_ledger(sqlite_url), open_ledger(sqlite_url)
    write(old, "ada")
    assert users(other) == ["ada"]
    take_away(file)
    new = open_ledger(sqlite_url)
    write(new, "ben")
    assert users(old) == ["ben"]
    other.close()
    assert Path(f"{file}-wal").stat().st_size > 0
    write(new, "cho")
    assert users(open_ledger(sqlite_url)) == ["ben", "cho"]


def test_a_file_that_went_while_a_write_waited_for_its_turn(
    file: Path, sqlite_url: str, open_ledger: Opener
) -> None:
    ledger = open_ledger(sqlite_url)
    write(ledger, "ada")
    inside, leave = threading.Event(), threading.Event()
    failed: list[str] = []

    def hold() -> None:
        with ledger.write():
            inside.set()
            leave.wait(60)

    def told(work: Callable[[], None]) -> None:
        try:
            work()
        except LedgerAwayError as error:
            failed.append(str(error))

    holder = threading.Thread(target=told, args=(hold,))
    holder.start()
    assert inside.wait(60)
    waiter = threading.Thread(target=told, args=(lambda: write(ledger, "ben"),))
    waiter.start()
    wait_for("the other writer to stand in line", lambda: ledger._lock._waiting, timeout=60)
    away = take_away(file)
    leave.set()
    for thread in (holder, waiter):
        thread.join()
    assert len(failed) == 2
    assert users(open_ledger(f"sqlite:///{away}")) == ["ada"]


def test_what_was_written_into_a_replaced_file_does_not_count(
    file: Path, sqlite_url: str, open_ledger: Opener, tmp_path: Path
) -> None:
    """The grant is not given out: its record is in a file that nobody finds."""
    ledger = open_ledger(sqlite_url)
    with ledger.write() as books:
        books.save_host(inventory(device("a")))
        books.add_lease(claim("ada"), T0)
        books.view(T0)
    copy = tmp_path / "copy.sqlite"
    with sqlite3.connect(file) as one, sqlite3.connect(copy) as other:
        one.backup(other)
    one.close()
    other.close()
    with pytest.raises(LedgerAwayError, match="removed or replaced"):
        write_and(ledger, lambda: os.replace(copy, file))
    for name in ("-wal", "-shm"):
        Path(f"{file}{name}").unlink()
    assert users(ledger) == ["ada"]
    write(ledger, "cho")
    assert users(open_ledger(sqlite_url)) == ["ada", "cho"]


def test_a_log_without_its_file_is_not_thrown_away(
    file: Path, sqlite_url: str, open_ledger: Opener
) -> None:
    ledger = open_ledger(sqlite_url)
    write(ledger, "ada")
    log = Path(f"{file}-wal")
    assert log.stat().st_size > 0
    away = file.rename(file.with_name("elsewhere"))
    content = log.read_bytes()
    with pytest.raises(LedgerAwayError, match=r"ledger\.sqlite-wal; put the file back, or"):
        write(open_ledger(sqlite_url), "ben")
    assert log.read_bytes() == content
    away.rename(file)
    assert users(open_ledger(sqlite_url)) == ["ada"]


def test_a_symbolic_link_is_followed(tmp_path: Path, open_ledger: Opener) -> None:
    (tmp_path / "data").mkdir()
    link = tmp_path / "ledger.sqlite"
    link.symlink_to("data/books.sqlite")
    ledger = open_ledger(f"sqlite:///{link}")
    write(ledger, "ada")
    assert link.is_symlink()
    assert users(open_ledger(f"sqlite:///{tmp_path}/data/books.sqlite")) == ["ada"]


def test_a_reader_sees_what_another_process_put_there(
    file: Path, sqlite_url: str, open_ledger: Opener
) -> None:
    ledger = open_ledger(sqlite_url)
    write(ledger, "ada")
    take_away(file)
    with child(write_leases, sqlite_url, ["ben", "cho"]) as pipe:
        assert heard(pipe) == "written"
    assert users(ledger) == ["ben", "cho"]


def test_reading_only_makes_no_file_and_upgrades_nothing(
    file: Path, sqlite_url: str, open_ledger: Opener
) -> None:
    ledger = open_ledger(sqlite_url, read_only=True)
    with pytest.raises(LedgerAwayError, match="gone"), ledger.read():
        pytest.fail("opened")
    assert list(file.parent.iterdir()) == []
    sqlite3.connect(file).close()
    file.touch()
    with pytest.raises(LedgerAwayError, match="no ledger"), ledger.read():
        pytest.fail("opened")
    assert file.stat().st_size == 0
    file.unlink()
    write(open_ledger(sqlite_url), "ada")
    assert users(ledger) == ["ada"]
    with pytest.raises(LedgerAwayError, match="readonly"):
        write(ledger, "ben")
    assert users(ledger) == ["ada"]
