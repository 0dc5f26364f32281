"""The ledger: what is remembered, behind one write transaction at a time.

On SQLite a write begins with BEGIN IMMEDIATE and is synchronous, since a grant must survive a
power cut; reads go through a second engine with deferred transactions, since a page must not wait
like a writer. One queue per process stands before the write transaction, and processes take
turns: writers then wait in line and not in the database's busy handler. On PostgreSQL a write
locks the pool's row. Every call blocks: run it in a worker thread.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final

from sqlalchemy import Engine, select
from sqlalchemy.exc import DatabaseError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from gpuspawner.ledger import tables
from gpuspawner.ledger.errors import LedgerAwayError as LedgerAwayError
from gpuspawner.ledger.files import PUT_BACK, LedgerFile, is_damage
from gpuspawner.ledger.opening import Opened, checked, opened
from gpuspawner.ledger.reader import Decoders, Reader
from gpuspawner.ledger.turns import Queue, Turns
from gpuspawner.ledger.view import LastView
from gpuspawner.ledger.writer import Writer
from gpuspawner.steps import UNWATCHED, Steps

DEFAULT_URL: Final = "sqlite:///gpuspawner.sqlite"
BUSY_SECONDS: Final = 10.0
_READ_ONLY_SQLSTATE: Final = "25006"  # a PostgreSQL server that takes no writes, such as a standby


class Ledger:
    """An open ledger. Made in one place of a process and passed on."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        busy_seconds: float = BUSY_SECONDS,
        read_only: bool = False,
        steps: Steps = UNWATCHED,
    ) -> None:
        """Name the database by SQLAlchemy URL; nothing is opened yet.

        A ledger that is read only is neither made nor upgraded, and `write` fails.

        Raises:
            ValueError: neither a SQLite file nor PostgreSQL.
        """
        self.url = checked(url)
        self.steps = steps
        self._busy_seconds = busy_seconds
        self._read_only = read_only
        self._lock = Queue()
        self._open_lock = threading.Lock()
        self._open: Opened | None = None
        path = Path(str(self.url.database)) if self.url.get_backend_name() == "sqlite" else None
        self._file = None if path is None else LedgerFile(path)
        self._turns = None if path is None else Turns(path)
        self._decoders = Decoders()
        self._last = LastView()

    @property
    def busy_seconds(self) -> float:
        """How long a write waits for others before it is given up (seconds)."""
        return self._busy_seconds

    @contextmanager
    def write(self) -> Iterator[Writer]:
        """One write transaction: committed at the end, rolled back on any exception.

        Raises:
            LedgerAwayError: locked for too long, full, read-only or not reachable.
        """
        with self._translated():
            writing, _ = self._opened()
            if not self._lock.acquire(self._busy_seconds):
                raise LedgerAwayError("the ledger is busy: another write of this process hangs")
            try:
                line = self._turns.turn(self._busy_seconds) if self._turns else nullcontext()
                with line, writing.begin() as connection:
                    if connection.dialect.name == "postgresql":
                        connection.execute(select(tables.pool.c.pool_id).with_for_update())
                    writer = Writer(connection, self._decoders, self._last)
                    yield writer
                    writer.flush()
            except BaseException:
                # What a transaction entered that was rolled back must not be taken for granted.
                self._last = LastView()
                raise
            finally:
                self._lock.release()

    @contextmanager
    def read(self) -> Iterator[Reader]:
        """One consistent read.

        Raises:
            LedgerAwayError: not reachable.
        """
        with self._translated():
            _, reading = self._opened()
            with self.steps.around("ledger:read"), reading.connect() as connection:
                yield Reader(connection, self._decoders)

    def close(self) -> None:
        """Close all connections; the ledger opens again at the next use."""
        with self._open_lock:
            self._forget()
            if self._turns is not None:
                self._turns.close()

    def _opened(self) -> tuple[Engine, Engine]:
        found = self._open
        if found is None or not self._is_present(found):
            found = self._open_now()
        return found.writing, found.reading

    def _open_now(self) -> Opened:
        if not self._open_lock.acquire(timeout=self._busy_seconds):
            raise LedgerAwayError("the ledger is not open yet: another thread tries to open it")
        try:
            if self._open is not None and not self._is_present(self._open):
                self._forget()
            if self._open is None:
                with self.steps.around("ledger:open"):
                    self._open = opened(
                        self.url, self._file, self._busy_seconds, read_only=self._read_only
                    )
            return self._open
        finally:
            self._open_lock.release()

    def _is_present(self, found: Opened) -> bool:
        """Whether the name of a SQLite ledger still leads to the file that was opened."""
        return self._file is None or self._file.identity() == found.identity

    def _forget(self) -> None:
        found, self._open = self._open, None
        self._last = LastView()
        if found is not None:
            found.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except PoolTimeoutError as error:
            raise LedgerAwayError("the ledger is busy: all connections are in use") from error
        except DBAPIError as error:
            if _is_away(error):
                raise LedgerAwayError(f"the ledger cannot be used now: {_cause(error)}") from error
            raise


def _is_away(error: DBAPIError) -> bool:
    """Whether this is about the database itself and not about what was asked of it.

    A plain `DatabaseError` is how SQLite tells that the file is damaged or no database.
    """
    return (
        isinstance(error, OperationalError | InterfaceError)
        or type(error) is DatabaseError
        or error.connection_invalidated
        or getattr(error.orig, "sqlstate", None) == _READ_ONLY_SQLSTATE
    )


def _cause(error: DBAPIError) -> str:
    """Return the driver's own words: the statement and its values stay out of logs."""
    words = str(error.orig).strip()
    return (
        f"{words}; the file is damaged or no ledger: {PUT_BACK}" if is_damage(error.orig) else words
    )
