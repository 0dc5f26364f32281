"""Translations, read from the ``.po`` file that ships with the package: no compile step."""

import gettext
import io
from functools import cache
from pathlib import Path
from typing import Final

from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po

SOURCE_LOCALE: Final = "en"
_LOCALE_DIR: Final = Path(__file__).parent / "locale"


def po_path(locale: str) -> Path:
    """Return where the translations into a locale are kept."""
    return _LOCALE_DIR / locale / "LC_MESSAGES" / "gpuspawner.po"


@cache
def translations_for(locale: str) -> gettext.NullTranslations:
    """Read the translations into a locale, once per process; fuzzy ones do not count."""
    if locale == SOURCE_LOCALE:
        return gettext.NullTranslations()
    with po_path(locale).open("rb") as file:
        catalog = read_po(file, locale=locale)
    compiled = io.BytesIO()
    write_mo(compiled, catalog)
    compiled.seek(0)
    return gettext.GNUTranslations(compiled)
