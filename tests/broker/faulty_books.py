"""Books that can be copied, put back, lost: a SQLite file, or a database of PostgreSQL."""

import shutil
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import psycopg

from gpuspawner.ledger.backup import copy, remove
from gpuspawner.ledger.files import LedgerFile
from gpuspawner.ledger.opening import checked, opened
from gpuspawner.ledger.restore import Restorer, mark_restored, restore
from gpuspawner.ledger.store import Ledger

BUSY_SECONDS = 5.0

# The rows of each table as PostgreSQL copies them, and the last number of each sequence.
Kept = tuple[dict[str, bytes], dict[str, int | None]]


class Books(Protocol):
    """Where the ledger of one life is. Whoever has it open closes it before anything is done."""

    url: str

    def back_up(self) -> None:
        """Keep a copy, in the place of the one before."""

    def put_back(self, now: datetime, *, marked: bool) -> None:
        """Put the copy back, as ``gpuspawner restore`` does or by hand."""

    def lose(self) -> None:
        """Begin with empty books."""

    def close(self) -> None:
        """Leave nothing behind."""


class SqliteBooks:
    """A file; empty books are copied and not made each time."""

    def __init__(self, empty: Path) -> None:
        self._empty = empty
        self._folder = Path(tempfile.mkdtemp(dir=empty.parent))
        self._file, self._copy = self._folder / "ledger.sqlite", self._folder / "copy.sqlite"
        self.url = f"sqlite:///{self._file}"
        self.lose()

    def back_up(self) -> None:
        copy(self._file, self._copy, BUSY_SECONDS, overwrite=True)

    def put_back(self, now: datetime, *, marked: bool) -> None:
        if marked:
            by = Restorer(actor="cho", now=now)
            restore(
                self._copy, LedgerFile(self._file), by, lambda _: None, busy_seconds=BUSY_SECONDS
            )
        else:
            remove(self._file)
            shutil.copy(self._copy, self._file)

    def lose(self) -> None:
        remove(self._file)
        shutil.copy(self._empty, self._file)

    def close(self) -> None:
        shutil.rmtree(self._folder)


class PostgresBooks:
    """A database, whose tables are copied row by row: a database anew each time takes long."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._address = url.replace("+psycopg", "")
        with self._connected() as connection:
            found = connection.execute(
                "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
            ).fetchall()
            self._tables = [str(name) for (name,) in found]
            self._empty = self._kept(connection)
        self._copy = self._empty

    def back_up(self) -> None:
        with self._connected() as connection:
            self._copy = self._kept(connection)

    def put_back(self, now: datetime, *, marked: bool) -> None:
        self._fill(self._copy)
        if marked:
            found = opened(checked(self.url), None, BUSY_SECONDS, read_only=True)
            try:
                with found.writing.begin() as connection:
                    by = Restorer(actor="cho", now=now)
                    mark_restored(connection, by, backup=None, kept=None)
            finally:
                found.close()

    def lose(self) -> None:
        self._fill(self._empty)

    def close(self) -> None:
        self._fill(self._empty)

    def _connected(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self._address)

    def _kept(self, connection: psycopg.Connection[tuple[Any, ...]]) -> Kept:
        rows = {}
        for name in self._tables:
            with connection.cursor().copy(f'COPY "{name}" TO STDOUT') as lines:
                rows[name] = b"".join(map(bytes, lines))
        numbers = connection.execute("SELECT sequencename, last_value FROM pg_sequences").fetchall()
        return rows, dict(numbers)

    def _fill(self, kept: Kept) -> None:
        rows, numbers = kept
        with self._connected() as connection:
            # Of all tables at once: some refer to others.
            connection.execute("SET session_replication_role = replica")
            connection.execute(f"TRUNCATE {', '.join(rows)}")
            for name, lines in rows.items():
                with connection.cursor().copy(f'COPY "{name}" FROM STDIN') as target:
                    target.write(lines)
            for name, last in numbers.items():
                connection.execute("SELECT setval(%s, %s, %s)", (name, last or 1, last is not None))


def write_empty(url: str) -> None:
    """Make books with their tables, and nothing in them."""
    ledger = Ledger(url)
    with ledger.read():
        pass
    ledger.close()
