"""One row of a report, and how rows are printed."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """What was measured, against which bound; ``holds`` is None where there is no bound."""

    what: str
    measured: str
    bound: str
    holds: bool | None
    note: str = ""


def show(rows: Iterable[Row]) -> str:
    """Lay rows out for a terminal."""
    lines = [("what", "measured", "bound", "", "note")]
    words = {True: "holds", False: "MISSED", None: ""}
    lines += [(row.what, row.measured, row.bound, words[row.holds], row.note) for row in rows]
    widths = [max(len(line[at]) for line in lines) for at in range(5)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
