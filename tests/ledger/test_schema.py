"""The schema: made once by whoever comes first, the same as the tables say, never downgraded."""

import sqlite3
import stat
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.engine import make_url

from gpuspawner.ledger import tables
from gpuspawner.ledger.migrate import NewerSchemaError
from gpuspawner.ledger.store import Ledger
from tests.ledger.children import child, heard, open_at_a_word

Opener = Callable[..., Ledger]


def touch(ledger: Ledger) -> None:
    with ledger.read():
        pass


def test_migrating_an_empty_database_gives_exactly_the_tables(
    ledger: Ledger, ledger_url: str
) -> None:
    touch(ledger)
    engine = create_engine(ledger_url)
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": True}
        )
        assert compare_metadata(context, tables.metadata) == []
        present = inspect(connection)
        for table in tables.metadata.sorted_tables:
            named = {each.name for each in table.constraints if each.name}
            named |= {each.name for each in table.indexes}
            checks = {each["name"] for each in present.get_check_constraints(table.name)}
            uniques = {each["name"] for each in present.get_unique_constraints(table.name)}
            keys = {each["name"] for each in present.get_foreign_keys(table.name)}
            keys.add(f"pk_{table.name}")  # SQLite does not name the key of a counter
            indexes = {each["name"] for each in present.get_indexes(table.name)}
            assert named == checks | keys | uniques | (indexes - uniques), table.name
    engine.dispose()


def test_one_pool_row_is_there_from_the_first_moment(ledger: Ledger) -> None:
    with ledger.write() as books:
        assert [books.next_fence() for _ in range(3)] == [1, 2, 3]


def test_opening_again_changes_nothing(ledger: Ledger) -> None:
    with ledger.write() as books:
        books.next_fence()
    ledger.close()
    with ledger.write() as books:
        assert books.next_fence() == 2


def test_several_processes_open_a_fresh_ledger_at_once(ledger_url: str) -> None:
    with ExitStack() as stack:
        pipes = [stack.enter_context(child(open_at_a_word, ledger_url)) for _ in range(3)]
        assert [heard(pipe) for pipe in pipes] == ["ready"] * 3
        for pipe in pipes:
            pipe.send("go")
        assert sorted(heard(pipe) for pipe in pipes) == [1, 2, 3]


def test_several_threads_open_many_fresh_files_at_once(
    tmp_path: Path, open_ledger: Opener, at_once: Callable[..., list[object]]
) -> None:
    """Switching a new file to write-ahead logging is where SQLite does not wait by itself."""
    for number in range(10):
        url = f"sqlite:///{tmp_path}/{number}.sqlite"
        ledgers = [open_ledger(url) for _ in range(4)]

        def fence(ledger: Ledger) -> int:
            with ledger.write() as books:
                return books.next_fence()

        assert sorted(at_once(fence, ledgers)) == [1, 2, 3, 4]  # type: ignore[type-var]


def test_several_ledgers_are_opened_at_once_by_one_process(
    tmp_path: Path, open_ledger: Opener, at_once: Callable[..., list[object]]
) -> None:
    """Alembic keeps the migration that runs in a global: threads must not meet there."""
    ledgers = [open_ledger(f"sqlite:///{tmp_path}/{number}.sqlite") for number in range(6)]

    def fence(ledger: Ledger) -> int:
        with ledger.write() as books:
            return books.next_fence()

    assert at_once(fence, ledgers) == [1] * 6


def test_a_schema_of_the_future_is_refused_and_left_alone(
    ledger_url: str, open_ledger: Opener
) -> None:
    touch(open_ledger(ledger_url))
    engine = create_engine(ledger_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    late = open_ledger(ledger_url)
    for _ in range(2):
        with pytest.raises(NewerSchemaError, match=r"'9999'.*newer.*backup"), late.write():
            pytest.fail("opened")
    with engine.connect() as connection:
        found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
    engine.dispose()
    assert found == "9999"


def test_the_file_is_for_its_owner_only(sqlite_url: str, open_ledger: Opener) -> None:
    ledger = open_ledger(sqlite_url)
    with ledger.write() as books:
        books.next_fence()
        file = Path(str(make_url(sqlite_url).database))
        made = sorted(file.parent.iterdir())
        assert [path.name for path in made] == [
            "ledger.sqlite", "ledger.sqlite-next", "ledger.sqlite-shm", "ledger.sqlite-turn",
            "ledger.sqlite-wal",
        ]  # fmt: skip
        assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o600}


def test_a_file_that_the_site_made_keeps_its_mode(sqlite_url: str, open_ledger: Opener) -> None:
    file = Path(str(make_url(sqlite_url).database))
    file.touch(mode=0o640)
    touch(open_ledger(sqlite_url))
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


@pytest.mark.parametrize(
    "url",
    ["sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true", "mysql://h/d",
     "sqlite:///file::memory:?uri=true"],
)  # fmt: skip
def test_other_addresses_are_refused_in_words(url: str) -> None:
    with pytest.raises(ValueError, match="must be sqlite:///FILE or postgresql://"):
        Ledger(url)


@pytest.mark.proves("P9")
def test_a_refused_address_does_not_show_its_password() -> None:
    with pytest.raises(ValueError, match=r"mysql://gpu:\*\*\*@h/d"):
        Ledger("mysql://gpu:secret@h/d")


def test_the_drivers_are_ours_whatever_the_address_says() -> None:
    assert Ledger("postgresql://h/d").url.drivername == "postgresql+psycopg"
    assert Ledger("sqlite+aiosqlite:///x").url.drivername == "sqlite"


def test_the_ledger_is_a_plain_sqlite_file_for_other_tools(
    sqlite_url: str, open_ledger: Opener
) -> None:
    ledger = open_ledger(sqlite_url)
    touch(ledger)
    ledger.close()
    connection = sqlite3.connect(str(make_url(sqlite_url).database))
    names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    connection.close()
    assert set(tables.metadata.tables) | {"alembic_version"} <= names
