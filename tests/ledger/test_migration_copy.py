"""Before an upgrade a SQLite ledger is copied; without the copy there is no upgrade."""

import sqlite3
import stat
from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from gpuspawner.ledger.errors import NewerSchemaError, OlderSchemaError
from gpuspawner.ledger.files import LedgerFile
from gpuspawner.ledger.migrate import newest_schema
from gpuspawner.ledger.restore import Restorer, restore
from gpuspawner.ledger.store import Ledger, LedgerAwayError
from tests.builders import T0, claim
from tests.ledger.children import child, heard
from tests.ledger.disks import mount, small_disk
from tests.ledger.migrations import NEXT, become, next_version, open_as_the_next_version

pytestmark = pytest.mark.proves("R13")

Opener = Callable[..., Ledger]
COPY = f"ledger.sqlite.before-{NEXT}"


def ask(file: Path, question: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute(question).fetchall()


def schema(file: Path) -> object:
    return ask(file, "SELECT version_num FROM alembic_version")[0][0]


@pytest.fixture
def old(sqlite_url: str, tmp_path: Path) -> Path:
    """A ledger of this version, with one lease."""
    ledger = Ledger(sqlite_url)
    with ledger.write() as books:
        books.add_lease(claim("ada"), T0)
    ledger.close()
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return next_version(tmp_path_factory.mktemp("next"))


def users(ledger: Ledger) -> list[str]:
    with ledger.read() as books:
        return [lease.key.user for lease in books.living()]


def test_an_upgrade_leaves_a_copy_of_what_was(
    old: Path, sqlite_url: str, scripts: Path, open_ledger: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    present = newest_schema()
    become(scripts, monkeypatch)
    assert users(open_ledger(sqlite_url)) == ["ada"]
    copy = old.with_name(COPY)
    assert (schema(old), schema(copy)) == (NEXT, present)
    assert ask(old, "SELECT number FROM reservations") == [(1,)]
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert ask(copy, "SELECT user_name FROM leases") == [("ada",)]


def test_a_new_ledger_and_one_that_needs_nothing_leave_none(
    old: Path, sqlite_url: str, scripts: Path, open_ledger: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    users(open_ledger(sqlite_url))
    assert [path.name for path in old.parent.glob("*before*")] == []
    become(scripts, monkeypatch)
    users(open_ledger(f"sqlite:///{old.parent}/new.sqlite"))
    (old.parent / "made.sqlite").touch()
    users(open_ledger(f"sqlite:///{old.parent}/made.sqlite"))
    assert [path.name for path in old.parent.glob("*before*")] == []
    for _ in range(2):
        users(open_ledger(sqlite_url))
    assert [path.name for path in old.parent.glob("*before*")] == [COPY]


def test_of_several_that_start_at_once_one_upgrades_and_all_go_on(
    old: Path, sqlite_url: str, scripts: Path
) -> None:
    with ExitStack() as stack:
        pipes = [
            stack.enter_context(child(open_as_the_next_version, sqlite_url, scripts))
            for _ in range(3)
        ]
        assert [heard(pipe) for pipe in pipes] == ["ready"] * 3
        for pipe in pipes:
            pipe.send("go")
        assert [heard(pipe) for pipe in pipes] == [1, 1, 1]
    assert [path.name for path in old.parent.glob("*before*")] == [COPY]


def test_without_room_for_the_copy_there_is_no_upgrade_until_there_is(
    tmp_path: Path, scripts: Path, open_ledger: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk", "8m") as folder:
        url, file = f"sqlite:///{folder}/ledger.sqlite", folder / "ledger.sqlite"
        first = open_ledger(url)
        assert users(first) == []
        first.close()
        present = newest_schema()
        room = sum(path.stat().st_size for path in folder.iterdir()) // 1024 + 80
        mount("-o", f"remount,size={room}k", str(folder))
        become(scripts, monkeypatch)
        ledger = open_ledger(url)
        for _ in range(2):
            with pytest.raises(LedgerAwayError, match=f"not upgraded to schema '{NEXT}'.*full"):
                users(ledger)
        assert {path.name for path in folder.iterdir()} <= {
            "ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm",
        }  # fmt: skip
        assert schema(file) == present
        mount("-o", "remount,size=8m", str(folder))
        assert users(ledger) == []
        assert schema(file) == NEXT
        ledger.close()


def test_an_upgrade_that_fails_changes_nothing_and_fills_no_disk(
    old: Path, sqlite_url: str, tmp_path_factory: pytest.TempPathFactory, open_ledger: Opener,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    present = newest_schema()
    broken = next_version(tmp_path_factory.mktemp("broken"), 'op.execute("no such words")')
    with monkeypatch.context() as patch:
        become(broken, patch)
        for _ in range(3):
            with pytest.raises((LedgerAwayError, OperationalError)):
                users(open_ledger(sqlite_url))
    assert schema(old) == present
    assert ask(old, "SELECT name FROM sqlite_master WHERE name = 'reservations'") == []
    assert [path.name for path in old.parent.glob("*before*")] == [COPY]
    assert users(open_ledger(sqlite_url)) == ["ada"]


def test_who_only_reads_upgrades_nothing_and_says_so(
    old: Path, sqlite_url: str, scripts: Path, open_ledger: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    present = newest_schema()
    become(scripts, monkeypatch)
    with pytest.raises(OlderSchemaError, match=f"'{present}', older than '{NEXT}'.*upgrades it"):
        users(open_ledger(sqlite_url, read_only=True))
    assert schema(old) == present
    assert [path.name for path in old.parent.glob("*before*")] == []


def test_a_newer_ledger_is_away_for_the_old_version_and_left_alone(
    old: Path, sqlite_url: str, scripts: Path, open_ledger: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an error that a hub expects: its servers without GPU go on."""
    with monkeypatch.context() as patch:
        become(scripts, patch)
        users(open_ledger(sqlite_url))
    for read_only in (False, True):
        ledger = open_ledger(sqlite_url, read_only=read_only)
        with pytest.raises(NewerSchemaError, match=f"'{NEXT}'.*newer.*install that") as caught:
            users(ledger)
        assert isinstance(caught.value, LedgerAwayError)
    assert schema(old) == NEXT


def test_another_program_s_database_is_left_alone(sqlite_url: str, open_ledger: Opener) -> None:
    file = Path(sqlite_url.removeprefix("sqlite:///"))
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num)")
        connection.execute("INSERT INTO alembic_version VALUES (?)", (newest_schema(),))
        connection.commit()
    with pytest.raises(NewerSchemaError, match="another program's"):
        users(open_ledger(sqlite_url))
    assert ask(file, "SELECT name FROM sqlite_master") == [("alembic_version",)]


def test_an_older_backup_is_upgraded_when_it_comes_back(
    old: Path, sqlite_url: str, scripts: Path, open_ledger: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = old.rename(old.with_name("backup"))
    become(scripts, monkeypatch)
    by = Restorer(actor="admin:ada", now=T0 + timedelta(days=1))
    restore(backup, LedgerFile(old), by, lambda _: None, busy_seconds=1.0)
    assert schema(old) == NEXT
    assert users(open_ledger(sqlite_url)) == ["ada"]
    assert [path.name for path in old.parent.glob("*before*")] == []


@pytest.mark.postgresql
def test_postgresql_is_upgraded_without_a_copy(
    postgres_url: str, scripts: Path, open_ledger: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_ledger(postgres_url).write() as books:
        books.add_lease(claim("ada"), T0)
    become(scripts, monkeypatch)
    with open_ledger(postgres_url).write() as books:
        rows = books._connection.exec_driver_sql("SELECT number FROM reservations")
        assert rows.scalars().all() == [1]
