"""Copies of a SQLite ledger: consistent while others write, whole before they get their name."""

import contextlib
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from gpuspawner.ledger.files import OWNER_ONLY, is_damage, sync_folder

_MOST_LINES: Final = 20


class BackupError(Exception):
    """A copy cannot be made, or be put back. The text says why; nothing was changed."""


def copy(source: Path, target: Path, busy_seconds: float, *, overwrite: bool = False) -> None:
    """Copy a ledger's file as it is at one moment; readable by its owner only.

    Nobody who writes is held up. The copy is checked before it gets its name, and it is one file,
    without others beside it.

    Raises:
        BackupError: it cannot be read or written, is damaged, or there is a file of this name.
    """
    if target.exists():
        if not overwrite:
            raise BackupError(f"there is a file {target} already")
        if not target.is_file() or _is_of(target, source):
            raise BackupError(f"{target} is no place for a copy of {source}")
    new = target.with_name(f"{target.name}.part-{os.getpid()}")
    try:
        if source.stat().st_size == 0:
            raise BackupError(f"{source} is damaged, or no ledger: the file is empty")
        os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, OWNER_ONLY))
        try:
            _fill(new, source, busy_seconds)
            found = damage(new)
            if found:
                raise BackupError(f"{source} is damaged, and is not copied: {found[0]}")
            _name(new, target, overwrite)
        finally:
            remove(new)
    except FileExistsError:
        raise BackupError(f"there is a file {target} already") from None
    except (OSError, sqlite3.Error) as error:
        if is_damage(error):
            raise BackupError(f"{source} is damaged, or no ledger: {error}") from error
        raise BackupError(f"{source} cannot be copied to {target}: {error}") from error


def damage(file: Path) -> list[str]:
    """Return what SQLite finds wrong with a file; empty when it is whole. Reads only.

    Raises:
        OSError: there is none.
        sqlite3.OperationalError: it cannot be read now.
    """
    if file.stat().st_size == 0:  # for SQLite a new database, whose log it throws away
        return ["the file is empty"]
    try:
        with closing(_reading(file, 5.0)) as connection:
            lines = [
                str(line)
                for (text,) in connection.execute(f"PRAGMA integrity_check({_MOST_LINES})")
                for line in str(text).splitlines()
                if line != "ok"
            ]
            for table, row, parent, _ in connection.execute("PRAGMA foreign_key_check"):
                lines.append(f"row {row} of {table} refers to a row of {parent} that is not there")
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        return [str(error)]
    return lines[:_MOST_LINES]


def remove(file: Path) -> None:
    """Remove a file of SQLite's with what belongs to it."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        with contextlib.suppress(FileNotFoundError):
            file.with_name(file.name + suffix).unlink()


def sync(file: Path) -> None:
    """Make a file's content outlive a power cut. Not for one that SQLite has open here."""
    handle = os.open(file, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _fill(new: Path, source: Path, busy_seconds: float) -> None:
    with (
        closing(_reading(source, busy_seconds)) as reading,
        closing(sqlite3.connect(new, isolation_level=None)) as writing,
    ):
        # SQLite's copying waits for a lock for ever; this does not.
        reading.execute("BEGIN")
        reading.execute("SELECT count(*) FROM sqlite_master").fetchone()
        reading.backup(writing)
        writing.execute("PRAGMA journal_mode=DELETE")


def _name(new: Path, target: Path, overwrite: bool) -> None:
    sync(new)
    if overwrite:
        os.replace(new, target)
    else:
        os.link(new, target)
    sync_folder(target.parent)


def _reading(file: Path, busy_seconds: float) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=busy_seconds, isolation_level=None
    )


def _is_of(target: Path, source: Path) -> bool:
    """Whether a name is that of the ledger itself or of what belongs to it."""
    return any(
        own.exists() and target.samefile(own)
        for own in (source.with_name(source.name + suffix) for suffix in ("", "-wal", "-shm"))
    )
