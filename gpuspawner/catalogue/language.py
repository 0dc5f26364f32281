"""Which language a reader gets: Accept-Language negotiation (RFC 9110, section 12.5.4)."""

import re
from typing import Final

SUPPORTED: Final = ("en", "zh_Hans")

_RANGE: Final = re.compile(r"\*|[a-z]{1,8}(?:-[a-z0-9]{1,8})*")
_WEIGHT: Final = re.compile(r"q=(0(?:\.\d{0,3})?|1(?:\.0{0,3})?)")
_SIMPLIFIED: Final = frozenset({"", "hans", "cn", "sg"})


def choose_locale(accept_language: str | None, default: str = "en") -> str:
    """Choose one of `SUPPORTED` by what the reader prefers; ``default`` when nothing suits.

    The highest weight wins, then the order of the header, then the default. A weight of 0
    excludes; ``*`` stands for each language that is not named. Parts that are malformed are
    passed over, so that no header raises.

    Raises:
        ValueError: ``default`` is not supported.
    """
    if default not in SUPPORTED:
        raise ValueError(f"expected a default of {', '.join(SUPPORTED)}, got {default!r}")
    named: dict[str, tuple[float, int]] = {}  # locale to its best weight and place (later: lower)
    rest: tuple[float, int] | None = None
    for place, part in enumerate((accept_language or "").split(",")):
        parsed = _parse(part)
        if parsed is None:
            continue
        language, weight = parsed
        score = (weight, -place)
        if language == "*":
            rest = max(rest or score, score)
            continue
        locale = _locale_of(language)
        if locale is not None:
            named[locale] = max(named.get(locale, score), score)
    best, best_score = default, (0.0, 0)
    for locale in (default, *(each for each in SUPPORTED if each != default)):
        score = named.get(locale, rest or (0.0, 0))
        if score[0] > 0 and score > best_score:
            best, best_score = locale, score
    return best


def _parse(part: str) -> tuple[str, float] | None:
    language, *parameters = (item.strip().lower() for item in part.split(";"))
    if not _RANGE.fullmatch(language) or len(parameters) > 1:
        return None
    if not parameters:
        return language, 1.0
    weight = _WEIGHT.fullmatch(parameters[0])
    return (language, float(weight[1])) if weight else None


def _locale_of(language: str) -> str | None:
    primary, _, rest = language.partition("-")
    if primary == "en":
        return "en"
    if primary == "zh" and rest.partition("-")[0] in _SIMPLIFIED:
        return "zh_Hans"
    return None
