"""Putting a backup back in the place of a ledger that nobody uses; what was there is kept.

A backup knows nothing of what happened after it: servers that were started since run with numbers
of leases and grants that the backup does not have. So the numbers go on far above, no label of a
container is ever taken for a newer lease's, and what the agents saw is forgotten: nothing is handed
out before they have looked again.
"""

import contextlib
import errno
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, Engine, delete, text, update

from gpuspawner.ledger import tables
from gpuspawner.ledger.backup import BackupError, copy, damage, remove, sync
from gpuspawner.ledger.errors import NewerSchemaError
from gpuspawner.ledger.files import OWNER_ONLY, LedgerFile, sync_folder
from gpuspawner.ledger.migrate import migrate, schema_of
from gpuspawner.ledger.mounts import refuse_network
from gpuspawner.ledger.opening import sqlite_engine
from gpuspawner.ledger.reader import Decoders
from gpuspawner.ledger.view import LastView
from gpuspawner.ledger.writer import Writer

SKIPPED_NUMBERS: Final = 1_000_000
# SQLite's lock bytes: every open ledger has a read lock on some of them.
_LOCKS_START, _LOCKS_LENGTH = 0x40000000, 512


@dataclass(frozen=True, slots=True)
class Restorer:
    """Who puts a backup back, and when: for the audit."""

    actor: str
    now: datetime


def restore(
    backup: Path,
    file: LedgerFile,
    by: Restorer,
    refuse: Callable[[Path], None],
    *,
    busy_seconds: float,
) -> Path | None:
    """Put a backup in the place of the ledger, and return where the present one is kept.

    ``refuse`` is called with a copy of the backup that has the newest schema, and raises if these
    books must not be used.

    Raises:
        BackupError: the backup is none, is damaged or newer; or somebody uses the ledger.
        LedgerAwayError: the ledger would lie on a network file system.
    """
    refuse_network(file.real)
    if not backup.is_file():
        raise BackupError(f"there is no file {backup}")
    if file.real.exists():
        if backup.samefile(file.real):
            raise BackupError(f"{backup} is the ledger itself")
        with _alone(file):
            pass
    new = LedgerFile(file.beside(f".restoring-{os.getpid()}"))
    try:
        copy(backup, new.path, busy_seconds, overwrite=True)
        kept = _free_name(file, by.now)
        _prepare(new, refuse, by, backup, kept if file.real.exists() else None, busy_seconds)
        _own_like(new.path, file)
        sync(new.path)
        _write_log_back(file)
        return _put_in_place(new.path, file, kept)
    except (OSError, sqlite3.Error) as error:
        raise BackupError(f"{backup} cannot be put back: {error}") from error
    finally:
        remove(new.path)


def mark_restored(
    connection: Connection, by: Restorer, *, backup: str | None, kept: str | None
) -> None:
    """Forget what agents saw, skip the numbers that may have been used since, and record it."""
    for table in (tables.hosts, tables.engines):
        connection.execute(delete(table))
    connection.execute(update(tables.pool).values(fence=tables.pool.c.fence + SKIPPED_NUMBERS))
    if connection.dialect.name == "postgresql":
        sequence = "pg_get_serial_sequence('leases', 'lease_id')"
        connection.execute(
            text(f"SELECT setval({sequence}, nextval({sequence}) + :skipped)"),
            {"skipped": SKIPPED_NUMBERS},
        )
    else:
        _skip_on_sqlite(connection)
    books = Writer(connection, Decoders(), LastView())
    books.add_audit(
        at=by.now, actor=by.actor, action="restore", target=backup, detail={"kept": kept}
    )
    books.flush()


def _skip_on_sqlite(connection: Connection) -> None:
    skip = {"skipped": SKIPPED_NUMBERS}
    done = connection.execute(
        text("UPDATE sqlite_sequence SET seq = seq + :skipped WHERE name = 'leases'"), skip
    )
    if done.rowcount == 0:  # no lease was ever written
        connection.execute(
            text("INSERT INTO sqlite_sequence (name, seq) VALUES ('leases', :skipped)"), skip
        )


def _prepare(
    new: LedgerFile, refuse: Callable[[Path], None], by: Restorer, backup: Path,
    kept: Path | None, busy_seconds: float,
) -> None:  # fmt: skip
    """Make the copy what is to stand in the ledger's place.

    Raises:
        BackupError: it is no ledger, or a newer one.
    """
    with _engine(new, busy_seconds) as engine, engine.begin() as connection:
        try:
            if schema_of(connection) is None:
                raise BackupError(f"{backup} is no ledger: it has none of its tables")
            migrate(connection)
        except NewerSchemaError as error:
            raise BackupError(f"{backup}: {error}") from error
    refuse(new.path)
    with _engine(new, busy_seconds) as engine, engine.begin() as connection:
        kept_name = None if kept is None else kept.name
        mark_restored(connection, by, backup=backup.name, kept=kept_name)
    if new.beside("-wal").exists():
        raise BackupError(f"{new.path} could not be written to its end")


@contextmanager
def _engine(file: LedgerFile, busy_seconds: float) -> Iterator[Engine]:
    engine = sqlite_engine(file, busy_seconds, "BEGIN IMMEDIATE")
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def _alone(file: LedgerFile) -> Iterator[None]:
    """Keep everybody out of the ledger's present file, which may be damaged.

    Raises:
        BackupError: somebody is in.
        OSError: it cannot be opened.
    """
    handle = os.open(file.real, os.O_RDWR)
    try:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, _LOCKS_LENGTH, _LOCKS_START)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise _in_use(file) from None
        yield
    finally:
        os.close(handle)


def _in_use(file: LedgerFile) -> BackupError:
    return BackupError(
        f"{file.path} is in use: stop the hub, the agent, the service 'gpu' and whatever else "
        "reads it, then run this again"
    )


def _write_log_back(file: LedgerFile) -> None:
    """Bring what is in the write-ahead log into the present file, if that is still sound.

    Should the machine fail while files are renamed, the ledger is then whole at any moment. What is
    damaged is kept with its log as it is.
    """
    if not file.real.exists() or damage(file.real):
        return
    try:
        with closing(sqlite3.connect(file.real, timeout=1.0, isolation_level=None)) as connection:
            connection.execute("PRAGMA locking_mode=EXCLUSIVE")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            raise _in_use(file) from None
        raise


def _put_in_place(new: Path, file: LedgerFile, kept: Path) -> Path | None:
    if not file.real.exists():
        _keep_log(file, kept)
        try:
            os.link(new, file.real)
        except FileExistsError:
            raise _in_use(file) from None
        sync_folder(new.parent)
        return None
    with _alone(file):
        os.link(file.real, kept)
        _keep_log(file, kept)
        sync_folder(new.parent)
        os.replace(new, file.real)
        sync_folder(new.parent)
    return kept


def _keep_log(file: LedgerFile, kept: Path) -> None:
    """Take the present file's log away: it must never meet another file of the same name."""
    with contextlib.suppress(FileNotFoundError):
        os.rename(file.beside("-wal"), kept.with_name(f"{kept.name}-wal"))
    with contextlib.suppress(FileNotFoundError):
        file.beside("-shm").unlink()


def _free_name(file: LedgerFile, now: datetime) -> Path:
    stamp = f".before-restore-{now:%Y%m%dT%H%M%SZ}"
    number = 1
    while True:
        name = file.beside(stamp if number == 1 else f"{stamp}-{number}")
        if not name.exists() and not name.with_name(f"{name.name}-wal").exists():
            return name
        number += 1


def _own_like(new: Path, file: LedgerFile) -> None:
    """Give a file, which root may have made, to who owns the ledger."""
    present = file.real if file.real.exists() else file.real.parent
    found = present.stat()
    os.chmod(new, found.st_mode & 0o777 if present == file.real else OWNER_ONLY)
    if os.geteuid() == 0:
        os.chown(new, found.st_uid, found.st_gid)
