"""The file of a SQLite ledger, and whether it is still the one that a connection has open.

A file that is removed or replaced while it is open lives on for those who have it open: what they
write is lost, and no error tells. So each connection knows which file it opened, and looks whether
the name still leads there: when it is taken from its pool, when a write begins, and after each
commit.
"""

import os
import sqlite3
from pathlib import Path
from typing import Any, Final

from gpuspawner.ledger.errors import DamagedError, LedgerAwayError

Identity = tuple[int, int]

OWNER_ONLY: Final = 0o600  # the ledger names people and what they use
PUT_BACK: Final = "put a backup back with `gpuspawner restore`"

_DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_STALE: Final = _DAMAGE | {
    sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL,
}  # fmt: skip


def is_damage(error: BaseException | None) -> bool:
    """Whether SQLite says that a file is torn, or no database."""
    return _primary(error) in _DAMAGE


def is_stale(error: BaseException | None) -> bool:
    """Whether a connection must be opened anew, since it may remember what is true no more."""
    return _primary(error) in _STALE


def _primary(error: BaseException | None) -> int:
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def identity_of(path: Path) -> Identity | None:
    """Tell files apart, whatever they are called; None when there is none of this name."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class FileConnection(sqlite3.Connection):
    """A connection that knows which file it has open."""

    path: Path
    identity: Identity

    def is_present(self) -> bool:
        """Whether the name still leads to the file that is open."""
        return identity_of(self.path) == self.identity

    def check(self) -> None:
        """Make sure of that.

        Raises:
            LedgerAwayError: the file was removed or replaced.
        """
        if not self.is_present():
            raise LedgerAwayError(
                f"the ledger's file {self.path} was removed or replaced while it was in use"
            )

    def commit(self) -> None:
        """Commit; what went into a file that nobody finds any more does not count.

        Raises:
            LedgerAwayError: the file was removed or replaced.
        """
        super().commit()
        self.check()


class LedgerFile:
    """Where a ledger is; opened as often as one likes."""

    def __init__(self, path: Path) -> None:
        """Name the file; it need not exist."""
        self.path = Path(os.path.abspath(path))
        self._was_open = False

    @property
    def real(self) -> Path:
        """The file itself, where the name is a symbolic link."""
        return Path(os.path.realpath(self.path))

    def beside(self, suffix: str) -> Path:
        """Name a file beside the ledger that begins with the ledger's name."""
        return self.real.with_name(self.real.name + suffix)

    def identity(self) -> Identity | None:
        """Tell which file has the name now."""
        return identity_of(self.path)

    def note_open(self) -> None:
        """Remember that there are books: they are never to be begun anew without a word."""
        self._was_open = True

    def is_new(self) -> bool:
        """Whether there is no ledger yet, and one may be made.

        Raises:
            DamagedError: there was one, and what is there now is empty.
            LedgerAwayError: this process has had one open, and it is gone.
        """
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            if self._was_open:
                raise LedgerAwayError(
                    f"the ledger's file {self.path} is gone; {PUT_BACK}, or restart to begin "
                    "with empty books"
                ) from None
            if self._has_log():
                raise LedgerAwayError(
                    f"the ledger's file {self.path} is gone, and what was written last lies beside "
                    f"it in {self.beside('-wal').name}; put the file back, or {PUT_BACK}, or "
                    "remove both to begin with empty books"
                ) from None
            return True
        except OSError as error:
            raise LedgerAwayError(f"the ledger cannot be opened: {error}") from error
        if size == 0 and (self._was_open or self._was_used()):
            raise DamagedError(
                f"the ledger's file {self.path} is damaged: it is empty, and was not; {PUT_BACK}, "
                "or remove it to begin with empty books"
            )
        return False

    def _was_used(self) -> bool:
        return self.path.with_name(self.path.name + "-turn").exists() or self._has_log()

    def _has_log(self) -> bool:
        try:
            return self.beside("-wal").stat().st_size > 0
        except OSError:
            return False

    def connect(self, busy_seconds: float, *, mode: str = "rw") -> FileConnection:
        """Open the file, which must exist; ``mode`` is SQLite's: ``rw`` or ``ro``.

        Raises:
            LedgerAwayError: it does not exist, or was replaced just now.
            sqlite3.Error: it cannot be opened.
        """
        identity = self.identity()
        if identity is None:
            raise LedgerAwayError(f"the ledger's file {self.path} is gone; {PUT_BACK}")
        connection: Any = sqlite3.connect(
            f"{self.path.as_uri()}?mode={mode}", uri=True, timeout=busy_seconds,
            check_same_thread=False, factory=FileConnection,
        )  # fmt: skip
        # None: the driver begins nothing by itself, else SELECTs would run outside transactions.
        connection.isolation_level = None
        connection.path, connection.identity = self.path, identity
        try:
            connection.check()
        except LedgerAwayError:
            connection.close()
            raise
        assert isinstance(connection, FileConnection)
        return connection


def sync_folder(folder: Path) -> None:
    """Make a new name in a folder outlive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
