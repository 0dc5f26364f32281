"""Write the pages of the reference that come from the code.

``python -m tools.docs.generate`` writes them; with ``--check`` it writes nothing and ends with 1
when one is not what the code says.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tools.docs import cli, guarantees, ledger, reasons, settings

FOLDER: Final = Path(__file__).resolve().parents[2] / "docs" / "reference"
PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "settings.md": settings.page,
    "cli.md": cli.page,
    "guarantees.md": guarantees.page,
    "reasons.md": reasons.page,
    "ledger.md": ledger.page,
}
_MARK: Final = "<!-- Written by python -m tools.docs.generate; change the code, not this page. -->"


def pages() -> dict[str, str]:
    """Return each page's text by its file's name."""
    return {name: f"{_MARK}\n\n{make().strip()}\n" for name, make in PAGES.items()}


def stale() -> list[str]:
    """Return the names of the pages that are not what the code says."""
    return [
        name
        for name, text in pages().items()
        if not (FOLDER / name).exists() or (FOLDER / name).read_text(encoding="utf-8") != text
    ]


def main(arguments: list[str] | None = None) -> int:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, only tell")
    if parser.parse_args(arguments).check:
        names = stale()
        for name in names:
            print(f"docs/reference/{name} is stale: run python -m tools.docs.generate")
        return int(bool(names))
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
