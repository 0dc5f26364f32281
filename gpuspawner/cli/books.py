"""``gpuspawner backup``, ``restore`` and ``verify``: copies of the books, and whether they hold."""

import argparse
import json
import shlex
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy.engine import URL

from gpuspawner.broker.invariants import broken_promises
from gpuspawner.cli.common import CommandError, actor, add_ledger, now
from gpuspawner.config import LEDGER_URL_VARIABLE, default_ledger_url
from gpuspawner.ledger.backup import BackupError, copy, damage
from gpuspawner.ledger.files import LedgerFile
from gpuspawner.ledger.migrate import newest_schema
from gpuspawner.ledger.opening import checked, opened
from gpuspawner.ledger.restore import Restorer, mark_restored, restore
from gpuspawner.ledger.store import BUSY_SECONDS, Ledger

_NEXT = (
    "Start the agent first: it compares the books with what runs, and no GPU is handed out before "
    "it has. Then start the hub and the service."
)


def add_verbs(verbs: Any) -> None:
    """Add the three verbs."""
    verb = verbs.add_parser("backup", help="copy the ledger while it is in use, and check the copy")
    verb.add_argument("file", type=Path, help="where the copy goes")
    verb.add_argument("--force", action="store_true", help="replace a file of that name")
    add_ledger(verb)
    verb.set_defaults(run=_backup)
    verb = verbs.add_parser(
        "restore", help="put a backup in the place of a ledger that is not used"
    )
    verb.add_argument(
        "file", type=Path, nargs="?",
        help="the backup; none for a PostgreSQL database that has been put back by its own means",
    )  # fmt: skip
    verb.add_argument("--force", action="store_true", help="even if its books break promises")
    add_ledger(verb)
    verb.set_defaults(run=_restore)
    verb = verbs.add_parser("verify", help="check that the books keep their promises; changes none")
    verb.add_argument("file", type=Path, nargs="?", help="a backup (default: the ledger itself)")
    verb.add_argument("--json", action="store_true", help="for scripts")
    add_ledger(verb)
    verb.set_defaults(run=_verify)


def _backup(arguments: argparse.Namespace) -> int:
    url = _url(arguments)
    target: Path = arguments.file
    if _file(url) is None:
        raise CommandError(
            "the books are in PostgreSQL; copy them with its own means: pg_dump --format=custom "
            f"--exclude-table-data=hosts --file={shlex.quote(str(target))} {_for_libpq(url)}"
        )
    source = _present_file(url)
    try:
        copy(source.real, target, BUSY_SECONDS, overwrite=arguments.force)
    except BackupError as error:
        hint = "; --force replaces it" if target.is_file() and not arguments.force else ""
        raise CommandError(f"{error}{hint}") from error
    broken = _broken(_url_of(target))
    if broken:
        print(_report(str(target), [], broken))
        return 1
    print(f"{source.path} is copied to {target} (schema {newest_schema()}); the copy is sound.")
    return 0


def _restore(arguments: argparse.Namespace) -> int:
    url = _url(arguments)
    file = _file(url)
    by = Restorer(actor=actor(), now=now())
    if file is None:
        return _restored_by_hand(url, arguments, by)
    if arguments.file is None:
        raise CommandError("name the backup")
    backup: Path = arguments.file

    def refuse(path: Path) -> None:
        _refuse_broken(_broken(_url_of(path)), str(backup), arguments.force)

    try:
        kept = restore(backup, file, by, refuse, busy_seconds=BUSY_SECONDS)
    except BackupError as error:
        raise CommandError(str(error)) from error
    print(f"The books of {backup} are back, at {file.path}.")
    if kept is not None:
        print(f"What was there is kept as {kept}.")
    print(_NEXT)
    return 0


def _restored_by_hand(url: URL, arguments: argparse.Namespace, by: Restorer) -> int:
    if arguments.file is not None:
        raise CommandError(
            "the books are in PostgreSQL; put them back with its own means: pg_restore --clean "
            f"--if-exists --dbname={_for_libpq(url)} {shlex.quote(str(arguments.file))}; then run "
            "'gpuspawner restore' without a file"
        )
    _refuse_broken(_broken(url), "the database", arguments.force)
    found = opened(url, None, BUSY_SECONDS, read_only=True)
    try:
        with found.writing.begin() as connection:
            mark_restored(connection, by, backup=None, kept=None)
    finally:
        found.close()
    print("The books are marked as put back.")
    print(_NEXT)
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    url = _url(arguments) if arguments.file is None else _url_of(arguments.file)
    file = None if _file(url) is None else _present_file(url)
    name = url.render_as_string(hide_password=True) if file is None else str(file.path)
    try:
        torn = [] if file is None else damage(file.real)
    except (OSError, sqlite3.Error) as error:
        raise CommandError(f"{name} cannot be read: {error}") from error
    # What is torn tells nothing that could be believed.
    broken = [] if torn else _broken(url)
    if arguments.json:
        report = {"ledger": name, "schema": newest_schema(), "damage": torn, "broken": broken}
        print(json.dumps(report, indent=2))
    else:
        print(_report(name, torn, broken))
    return 1 if torn or broken else 0


def _report(name: str, torn: Sequence[str], broken: Sequence[str]) -> str:
    if torn:
        return "\n  ".join([f"{name} is damaged:", *torn])
    if broken:
        return "\n  ".join([f"{name} breaks {len(broken)} promise(s):", *broken])
    return f"{name} keeps its promises (schema {newest_schema()})."


def _refuse_broken(broken: Sequence[str], name: str, force: bool) -> None:
    if broken and not force:
        raise CommandError(f"{_report(name, [], broken)}\n--force puts it back all the same")


def _broken(url: URL) -> list[str]:
    ledger = Ledger(url.render_as_string(hide_password=False), read_only=True)
    try:
        return broken_promises(ledger)
    finally:
        ledger.close()


def _url(arguments: argparse.Namespace) -> URL:
    try:
        return checked(arguments.ledger or default_ledger_url())
    except ValueError as error:
        raise CommandError(str(error)) from error


def _url_of(path: Path) -> URL:
    return URL.create("sqlite", database=str(path.absolute()))


def _file(url: URL) -> LedgerFile | None:
    return LedgerFile(Path(str(url.database))) if url.get_backend_name() == "sqlite" else None


def _present_file(url: URL) -> LedgerFile:
    file = _file(url)
    assert file is not None
    if not file.path.exists():
        raise CommandError(
            f"there is no ledger at {url.database}; name it by --ledger or {LEDGER_URL_VARIABLE}, "
            "or run this in the hub's working directory"
        )
    return file


def _for_libpq(url: URL) -> str:
    """Spell an address for PostgreSQL's own programs, without a password."""
    plain = URL.create("postgresql", url.username, None, *url[3:])
    return shlex.quote(plain.render_as_string(hide_password=True))
