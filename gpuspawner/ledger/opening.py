"""Opening a ledger: its address checked, its two engines made, its tables made or upgraded."""

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, ExceptionContext, make_url
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import QueuePool

from gpuspawner.ledger import backup
from gpuspawner.ledger.errors import LedgerAwayError
from gpuspawner.ledger.files import (
    OWNER_ONLY,
    FileConnection,
    Identity,
    LedgerFile,
    is_stale,
    sync_folder,
)
from gpuspawner.ledger.migrate import check_schema, migrate
from gpuspawner.ledger.mounts import refuse_network


@dataclass(frozen=True, slots=True)
class Opened:
    """A ledger that is open: one engine to write through, one to read."""

    writing: Engine
    reading: Engine
    identity: Identity | None  # of a SQLite file

    def close(self) -> None:
        """Close the connections that nobody uses; the others are closed when they are let go."""
        self.writing.dispose()
        self.reading.dispose()


def checked(url: str) -> URL:
    """Read an address.

    Raises:
        ValueError: neither a SQLite file nor PostgreSQL.
    """
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


def opened(url: URL, file: LedgerFile | None, busy_seconds: float, *, read_only: bool) -> Opened:
    """Open a ledger; made or upgraded first, unless it is only to be read.

    Raises:
        LedgerAwayError: not to be used now; nothing of it was changed.
        sqlalchemy.exc.DBAPIError: the same, in the driver's words.
    """
    if file is None:
        found = _postgresql(url, busy_seconds)
    else:
        refuse_network(file.real)
        if file.is_new() and not read_only:
            _make(file, busy_seconds)
        found = _sqlite(file, busy_seconds, read_only=read_only)
    try:
        if read_only:
            with found.reading.connect() as connection:
                check_schema(connection)
        else:
            with found.writing.begin() as connection:
                migrate(connection, _copy_first(file, busy_seconds))
    except BaseException:
        found.close()
        raise
    if file is not None:
        file.note_open()
    return found


def _sqlite(file: LedgerFile, busy_seconds: float, *, read_only: bool) -> Opened:
    identity = file.identity()
    reading = sqlite_engine(file, busy_seconds, "BEGIN DEFERRED", read_only=read_only)
    if read_only:
        return Opened(reading, reading, identity)
    return Opened(sqlite_engine(file, busy_seconds, "BEGIN IMMEDIATE"), reading, identity)


def sqlite_engine(
    file: LedgerFile, busy_seconds: float, begin: str, *, read_only: bool = False
) -> Engine:
    """Make an engine whose transactions begin as told; the file must exist when it is used."""
    engine = create_engine(
        "sqlite://",
        poolclass=QueuePool,
        creator=lambda: file.connect(busy_seconds, mode="ro" if read_only else "rw"),
    )

    @event.listens_for(engine, "connect")
    def on_connect(connection: FileConnection, _record: Any) -> None:
        cursor = connection.cursor()
        try:
            if not read_only:
                _use_write_ahead_log(cursor, busy_seconds)
            cursor.execute("PRAGMA synchronous=FULL")
            cursor.execute("PRAGMA foreign_keys=ON")
        finally:
            cursor.close()

    @event.listens_for(engine, "checkout")
    def on_checkout(connection: FileConnection, _record: Any, _proxy: Any) -> None:
        if not connection.is_present():
            raise DisconnectionError  # the pool opens another one

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)
        if begin == "BEGIN IMMEDIATE":  # it may have waited for a while
            raw = connection.connection.dbapi_connection
            assert isinstance(raw, FileConnection)
            raw.check()

    @event.listens_for(engine, "handle_error")
    def on_error(context: ExceptionContext) -> None:
        if is_stale(context.original_exception):
            context.is_disconnect = True  # the pool opens others

    return engine


def _use_write_ahead_log(cursor: sqlite3.Cursor, busy_seconds: float) -> None:
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


def _make(file: LedgerFile, busy_seconds: float) -> None:
    """Make a ledger as a whole before it gets its name: an empty file of that name is damage.

    Raises:
        LedgerAwayError: it cannot be made.
    """
    made = LedgerFile(file.beside(f".new-{os.getpid()}-{threading.get_ident()}"))
    engine = sqlite_engine(made, busy_seconds, "BEGIN IMMEDIATE")
    try:
        os.close(os.open(made.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, OWNER_ONLY))
        with engine.begin() as connection:
            migrate(connection)
        engine.dispose()
        with contextlib.suppress(FileExistsError):  # somebody else was quicker
            os.link(made.path, file.real)
        sync_folder(made.path.parent)
    except OSError as error:
        raise LedgerAwayError(f"the ledger cannot be made: {error}") from error
    finally:
        engine.dispose()
        for path in (made.path, made.beside("-wal"), made.beside("-shm")):
            with contextlib.suppress(OSError):
                path.unlink()


def _copy_first(file: LedgerFile | None, busy_seconds: float) -> Callable[[str], None] | None:
    """Return what copies a SQLite ledger before an upgrade. PostgreSQL has its own means."""
    if file is None:
        return None

    def copy(schema: str) -> None:
        try:
            backup.copy(file.real, file.beside(f".before-{schema}"), busy_seconds, overwrite=True)
        except backup.BackupError as error:
            raise LedgerAwayError(
                f"the ledger is not upgraded to schema {schema!r}, since no copy of it could be "
                f"made first: {error}"
            ) from error

    return copy


def _postgresql(url: URL, busy_seconds: float) -> Opened:
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
    reading = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    return Opened(engine, reading, None)
