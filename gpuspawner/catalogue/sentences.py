"""The sentences of every reason, and what of the catalogue's own data has to be translated."""

from collections.abc import Iterator, Mapping
from typing import Final

from gpuspawner.catalogue.lines import Part
from gpuspawner.catalogue.outcomes import OUTCOMES
from gpuspawner.catalogue.placeholders import fill, names
from gpuspawner.catalogue.refusals import REFUSALS
from gpuspawner.catalogue.words import SHORT, WORDED_VALUES
from gpuspawner.domain.reasons import Code

SENTENCES: Final[Mapping[Code, tuple[Part, ...]]] = {**REFUSALS, **OUTCOMES}


def messages() -> Iterator[str | tuple[str, str]]:
    """Yield what of this data has to be translated: a text, or its singular and plural."""
    for parts in SENTENCES.values():
        for part in parts:
            for line in part:
                if line.one:
                    yield (line.one, line.text)
                elif _has_words(line.text):
                    yield line.text
    yield from SHORT.values()
    for words in WORDED_VALUES.values():
        yield from words.values()


def _has_words(template: str) -> bool:
    return bool(fill(template, dict.fromkeys(names(template), "")))
