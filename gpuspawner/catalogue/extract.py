"""Collect every text that has to be translated, and bring the translations up to date.

``python -m gpuspawner.catalogue.extract`` rewrites the ``.po`` files: new texts come in empty,
texts that are gone are dropped, translations are kept. With ``--check`` it writes nothing and
ends with 1 when something is missing, fuzzy or left over.
"""

import argparse
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_file
from babel.messages.pofile import read_po, write_po

from gpuspawner.catalogue.language import SUPPORTED
from gpuspawner.catalogue.placeholders import fill
from gpuspawner.catalogue.sentences import messages
from gpuspawner.catalogue.translations import SOURCE_LOCALE, po_path

_Keywords = dict[str, tuple[int, ...] | None]

PACKAGE: Final = Path(__file__).resolve().parents[1]

_DATA: Final = "gpuspawner/catalogue/sentences.py"  # where the reasons' texts come together
_PYTHON_CALLS: Final[_Keywords] = {"text": None, "_": None, "plural": (1, 2)}
_TEMPLATE_CALLS: Final[_Keywords] = {"_": None, "gettext": None, "ngettext": (1, 2)}
_HEADER: Final = """\
# Translations of gpuspawner: edit the msgstr lines; the rest is written by
# python -m gpuspawner.catalogue.extract
msgid ""
msgstr ""
"Project-Id-Version: gpuspawner\\n"
"Language: {locale}\\n"
"Plural-Forms: {plural_forms}\\n"
"MIME-Version: 1.0\\n"
"Content-Type: text/plain; charset=utf-8\\n"
"Content-Transfer-Encoding: 8bit\\n"

"""
_SPEAKS_SQL: Final = "ledger"  # its ``text(...)`` is SQL


def collect(package: Path = PACKAGE) -> Catalog:
    """Return every text of the package, with the files it stands in."""
    template = Catalog(project="gpuspawner", fuzzy=False)
    for message in messages():
        template.add(message, locations=[(_DATA, 0)])
    for path in sorted(package.rglob("*")):
        where = path.relative_to(package.parent).as_posix()
        for called in _extract(path, package):
            template.add(called, locations=[(where, 0)])
    return template


def update(locale: str, template: Catalog) -> bytes:
    """Return the locale's ``.po`` file as it should be, with the translations that it has."""
    with po_path(locale).open("rb") as file:
        catalog = read_po(file, locale=locale)
    catalog.update(template, no_fuzzy_matching=True)
    written = io.BytesIO()
    write_po(
        written,
        catalog,
        width=99,
        omit_header=True,
        sort_by_file=True,
        ignore_obsolete=True,
        include_lineno=False,
    )
    header = fill(_HEADER, {"locale": locale, "plural_forms": catalog.plural_forms})
    return header.encode() + written.getvalue().strip() + b"\n"


def missing(po: bytes, locale: str) -> list[str]:
    """Return the texts of a ``.po`` file that have no translation, or a fuzzy one."""
    lacking = []
    for message in read_po(io.BytesIO(po), locale=locale):
        forms = message.string if isinstance(message.string, tuple | list) else (message.string,)
        if message.id and (message.fuzzy or not all(forms)):
            lacking.append(message.id if isinstance(message.id, str) else message.id[0])
    return lacking


def main(arguments: list[str] | None = None) -> int:
    """Update the ``.po`` files, or check them."""
    parser = argparse.ArgumentParser(description="Collect what has to be translated.")
    parser.add_argument("--check", action="store_true", help="write nothing, only tell")
    check = parser.parse_args(arguments).check
    template = collect()
    trouble = False
    for locale in SUPPORTED:
        if locale == SOURCE_LOCALE:
            continue
        path = po_path(locale)
        po = update(locale, template)
        lacking = missing(po, locale)
        stale = check and po != path.read_bytes()
        if not check:
            path.write_bytes(po)
        for msgid in lacking:
            sys.stdout.write(f"{locale}: no translation of {msgid!r}\n")
        if stale:
            sys.stdout.write(f"{locale}: the texts have changed; run without --check\n")
        trouble = trouble or stale or bool(lacking)
    return int(check and trouble)


def _extract(path: Path, package: Path) -> Iterator[str | tuple[str, ...]]:
    inside = path.relative_to(package)
    if path.suffix == ".py" and inside.parts[0] != _SPEAKS_SQL:
        found = extract_from_file("python", path, keywords=_PYTHON_CALLS)
    elif path.suffix == ".html" and "templates" in inside.parts:
        found = extract_from_file("jinja2", path, keywords=_TEMPLATE_CALLS)
    else:
        return
    for _, message, _, _ in found:
        if message:
            yield message


if __name__ == "__main__":
    sys.exit(main())
