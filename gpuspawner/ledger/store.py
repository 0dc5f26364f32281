"""The ledger: what is remembered, behind one write transaction at a time.

On SQLite a write begins with BEGIN IMMEDIATE and is synchronous, since a grant must survive a
power cut; reads go through a second engine with deferred transactions, since a page must not wait
like a writer. One queue per process stands before the write transaction, and processes take
turns: writers then wait in line and not in the database's busy handler. On PostgreSQL a write
locks the pool's row. Every call blocks: run it in a worker thread.
"""

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine, event, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DatabaseError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import QueuePool

from gpuspawner.ledger import tables
from gpuspawner.ledger.migrate import migrate
from gpuspawner.ledger.reader import Decoders, Reader
from gpuspawner.ledger.turns import Queue, Turns
from gpuspawner.ledger.view import LastView
from gpuspawner.ledger.writer import Writer

DEFAULT_URL: Final = "sqlite:///gpuspawner.sqlite"
BUSY_SECONDS: Final = 10.0
_READ_ONLY_SQLSTATE: Final = "25006"  # a PostgreSQL server that takes no writes, such as a standby


class LedgerAwayError(Exception):
    """The ledger cannot be read or written now. Nothing was written."""


class Ledger:
    """An open ledger. Made in one place of a process and passed on."""

    def __init__(self, url: str = DEFAULT_URL, *, busy_seconds: float = BUSY_SECONDS) -> None:
        """Name the database by SQLAlchemy URL; nothing is opened yet.

        Raises:
            ValueError: neither a SQLite file nor PostgreSQL.
        """
        self.url = _checked(url)
        self._busy_seconds = busy_seconds
        self._lock = Queue()
        self._open_lock = threading.Lock()
        self._engines: tuple[Engine, Engine] | None = None
        on_sqlite = self.url.get_backend_name() == "sqlite"
        self._turns = Turns(Path(str(self.url.database))) if on_sqlite else None
        self._decoders = Decoders()
        self._last = LastView()

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
                    yield Writer(connection, self._decoders, self._last)
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
            with reading.connect() as connection:
                yield Reader(connection, self._decoders)

    def close(self) -> None:
        """Close all connections; the ledger opens again at the next use."""
        with self._open_lock:
            engines, self._engines = self._engines, None
            self._last = LastView()
            if self._turns is not None:
                self._turns.close()
        for engine in engines or ():
            engine.dispose()

    def _opened(self) -> tuple[Engine, Engine]:
        engines = self._engines
        if engines is not None:
            return engines
        if not self._open_lock.acquire(timeout=self._busy_seconds):
            raise LedgerAwayError("the ledger is not open yet: another thread tries to open it")
        try:
            if self._engines is None:
                engines = _engines(self.url, self._busy_seconds)
                try:
                    with engines[0].begin() as connection:
                        migrate(connection)
                except BaseException:
                    for engine in engines:
                        engine.dispose()
                    raise
                self._engines = engines
            return self._engines
        finally:
            self._open_lock.release()

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
    return str(error.orig).strip()


def _checked(url: str) -> URL:
    parsed = make_url(url)
    if parsed.get_backend_name() == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    file = parsed.database or ""
    if parsed.get_backend_name() != "sqlite" or file.startswith((":memory:", "file:")) or not file:
        raise ValueError(
            "the ledger's address must be sqlite:///FILE or postgresql://..., got "
            f"{parsed.render_as_string(hide_password=True)!r}"
        )
    return parsed.set(drivername="sqlite")


def _engines(url: URL, busy_seconds: float) -> tuple[Engine, Engine]:
    if url.get_backend_name() == "postgresql":
        engine = create_engine(
            url,
            pool_pre_ping=True,
            connect_args={
                "connect_timeout": max(2, int(busy_seconds)),
                "options": f"-c lock_timeout={int(busy_seconds * 1000)}",
                # A server that has gone silent must not hold a thread for TCP's long patience.
                "keepalives_idle": 10,
                "keepalives_interval": 5,
                "keepalives_count": 3,
                "tcp_user_timeout": int(busy_seconds * 1000) + 5000,
            },
        )
        # A read of several tables is of one moment, as it is on SQLite.
        return engine, engine.execution_options(
            isolation_level="REPEATABLE READ", postgresql_readonly=True
        )
    assert url.database is not None
    file = Path(url.database)
    if not file.exists():
        try:
            # The ledger names people and what they use: readable by its owner only.
            file.touch(mode=0o600)
        except OSError as error:
            raise LedgerAwayError(f"the ledger cannot be made: {error}") from error
    writing = _sqlite_engine(url, busy_seconds, begin="BEGIN IMMEDIATE")
    return writing, _sqlite_engine(url, busy_seconds, begin="BEGIN DEFERRED")


def _sqlite_engine(url: URL, busy_seconds: float, *, begin: str) -> Engine:
    engine = create_engine(
        url,
        poolclass=QueuePool,
        connect_args={"timeout": busy_seconds, "check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def on_connect(dbapi_connection: Any, _record: Any) -> None:
        # None: the driver begins nothing by itself, else SELECTs would run outside transactions.
        dbapi_connection.isolation_level = None
        cursor = dbapi_connection.cursor()
        try:
            _use_write_ahead_log(cursor, busy_seconds)
            cursor.execute("PRAGMA synchronous=FULL")
            cursor.execute("PRAGMA foreign_keys=ON")
        finally:
            cursor.close()

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def _use_write_ahead_log(cursor: Any, busy_seconds: float) -> None:
    """Switch the file to WAL; SQLite does not wait here by itself when two open a new one."""
    deadline = time.monotonic() + busy_seconds
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.005)
        else:
            return
