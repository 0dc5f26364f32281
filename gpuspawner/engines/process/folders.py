"""Folders and log files that only we may read, made so or refused."""

import contextlib
import os
from pathlib import Path
from typing import Final, NoReturn

from gpuspawner.domain.reasons import Code, RefusedError, reason

SETTING: Final = "home_dir_template"
LAST_BYTES: Final = 4000


def make_private(folder: Path) -> None:
    """Make a folder that only we may enter (0700), or make an existing one so; keep what is in it.

    Raises:
        RefusedError: there is something else: a symbolic link, a file, another user's folder; or
            it cannot be made.
    """
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        _refuse(f"{folder} is no folder of its own and cannot be made one: {error.strerror}")
    try:
        if os.fstat(handle).st_uid != os.geteuid():
            _refuse(f"{folder} belongs to another user")
        os.fchmod(handle, 0o700)
    finally:
        os.close(handle)


def open_log(file: Path) -> int:
    """Open an empty log for appending, in a private folder, readable by us alone (0600).

    Raises:
        RefusedError: its folder is not ours alone, or a symbolic link or a folder is in its place.
    """
    make_private(file.parent)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW
    try:
        handle = os.open(file, flags, 0o600)
    except OSError as error:
        _refuse(f"the log {file} cannot be written: {error.strerror}")
    os.fchmod(handle, 0o600)
    return handle


def last_lines(file: Path, lines: int = 15) -> str:
    """Return a log's last lines; empty when they cannot be had."""
    try:
        with file.open("rb") as log:
            log.seek(max(os.fstat(log.fileno()).st_size - LAST_BYTES, 0))
            text = log.read(LAST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.strip().splitlines()[-lines:])


def _refuse(why: str) -> NoReturn:
    raise RefusedError(reason(Code.SITE_SETTING, setting=SETTING, why=why)) from None
