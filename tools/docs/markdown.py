"""Small pieces of Markdown."""

import inspect
import re
from collections.abc import Iterable, Sequence


def prose(text: str) -> str:
    """Return a docstring or a trait's help as Markdown: its literals have one backtick there."""
    return re.sub(r"``([^`]+)``", r"`\1`", inspect.cleandoc(text)).strip()


def line(text: str) -> str:
    """Return prose as one line, for a cell of a table."""
    return " ".join(prose(text).split()).replace("|", "\\|")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def code(value: object) -> str:
    """Return a value as a literal."""
    return f"`{value}`"
