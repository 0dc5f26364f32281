"""Books that can be copied, put back, lost: a SQLite file, or a database of PostgreSQL."""

import shutil
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Protocol

import psycopg

from gpuspawner.ledger.backup import copy, remove
from gpuspawner.ledger.files import LedgerFile
from gpuspawner.ledger.opening import checked, opened
from gpuspawner.ledger.restore import Restorer, mark_restored, restore
from gpuspawner.ledger.store import Ledger
from tests.rig.postgres import PostgresServer

BUSY_SECONDS = 5.0


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
    """A database; copies are databases made after it."""

    def __init__(self, server: PostgresServer, empty: str) -> None:
        self._server, self._empty = server, empty
        self.url = server.make_database()
        self._copy = server.make_database()
        self.lose()

    def back_up(self) -> None:
        self._make(self._copy, self.url)

    def put_back(self, now: datetime, *, marked: bool) -> None:
        self._make(self.url, self._copy)
        if marked:
            found = opened(checked(self.url), None, BUSY_SECONDS, read_only=True)
            try:
                with found.writing.begin() as connection:
                    by = Restorer(actor="cho", now=now)
                    mark_restored(connection, by, backup=None, kept=None)
            finally:
                found.close()

    def lose(self) -> None:
        self._make(self.url, self._empty)

    def close(self) -> None:
        for url in (self.url, self._copy):
            self._server.drop_database(url)

    def _make(self, url: str, like: str) -> None:
        self._server.drop_database(url)
        name, model = (each.rpartition("/")[2] for each in (url, like))
        address = self._server.url().replace("+psycopg", "")
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{model}"')


def write_empty(url: str) -> None:
    """Make books with their tables, and nothing in them."""
    ledger = Ledger(url)
    with ledger.read():
        pass
    ledger.close()
