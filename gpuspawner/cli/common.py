"""What several verbs share."""

import argparse
import getpass
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from gpuspawner.broker.broker import Broker
from gpuspawner.config import LEDGER_URL_VARIABLE, default_ledger_url
from gpuspawner.domain.knowledge import Unknown
from gpuspawner.domain.leases import ServerKey
from gpuspawner.ledger.store import Ledger


class CommandError(Exception):
    """What was asked for cannot be done; the text says why and what to do."""


def add_ledger(parser: argparse.ArgumentParser) -> None:
    """Let a verb name the ledger."""
    parser.add_argument(
        "--ledger", default=None, metavar="URL",
        help=f"where the books are (default: {LEDGER_URL_VARIABLE}, else ./gpuspawner.sqlite)",
    )  # fmt: skip


@contextmanager
def open_broker(arguments: argparse.Namespace) -> Iterator[Broker]:
    """Open the books that the arguments name.

    Raises:
        CommandError: there are none there; a mistyped path must not make new, empty ones.
    """
    try:
        ledger = Ledger(arguments.ledger or default_ledger_url())
    except ValueError as error:
        raise CommandError(str(error)) from error
    file = ledger.url.database if ledger.url.get_backend_name() == "sqlite" else None
    if file and not Path(file).exists():
        raise CommandError(
            f"there is no ledger at {file}; name it by --ledger or {LEDGER_URL_VARIABLE}, or run "
            "this in the hub's working directory"
        )
    try:
        yield Broker(ledger, actor="cli")
    finally:
        ledger.close()


def actor() -> str:
    """Return who runs this command, for the audit."""
    return f"admin:{getpass.getuser()}"


def now() -> datetime:
    """Return the present time in aware UTC."""
    return datetime.now(UTC)


def moment(when: datetime) -> str:
    """Spell a time for people, in UTC."""
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def server_name(key: ServerKey) -> str:
    """Name a server by its owner, and by its own name if it has one."""
    return key.user + (f"/{key.server}" if key.server else "")


def spell_unknown(unknown: Unknown | None) -> dict[str, str | None]:
    """Spell for scripts what is not known, and since when: both null where it is known."""
    return {
        "unknown_since": unknown.since.isoformat() if unknown and unknown.since else None,
        "unknown_why": str(unknown.why) if unknown else None,
    }


def plain(text: str) -> str:
    """Bring a text from elsewhere into one line that does nothing to a terminal."""
    shown = (each if each.isprintable() or each.isspace() else "?" for each in text)
    return " ".join("".join(shown).split())


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay rows out in columns, the last one ragged."""
    widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
             for row in [head, *rows]]  # fmt: skip
    return "\n".join(lines)
