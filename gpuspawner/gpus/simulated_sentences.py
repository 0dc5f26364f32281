"""How the state of a simulated lab is refused: in one sentence, as a ``ValueError``."""

import reprlib
from collections.abc import Mapping
from typing import Any, NoReturn

_HINT = "a number, or null for an unknown reading"


def refuse(sentence: str) -> NoReturn:
    """Say what is wrong and where."""
    raise ValueError(sentence)


def in_range(
    name: str, key: str, value: Any, most: int, least: int = 0, *, may_be_unknown: bool = False
) -> None:
    """Refuse what is no whole number within bounds.

    Args:
        name: where it stands, such as a UUID.
        key: what it is called there.
        value: what came.
        most: the highest that is possible.
        least: the lowest that is possible.
        may_be_unknown: whether ``None`` is allowed too.
    """
    if value is None and may_be_unknown:
        return
    if type(value) is not int or not least <= value <= most:
        hint = f" ({_HINT})" if may_be_unknown else ""
        wanted = f"a whole number from {least} to {most}{hint}"
        refuse(f"{name}: {key!r} must be {wanted}, not {came(value)}")


def known_keys(name: str, entry: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Refuse keys that mean nothing: one that is mistyped would be left out without a word."""
    for key in entry:
        if key not in known:
            at = f"{name}: " if name else ""
            refuse(f"{at}{key!r} is not a key here; known are {', '.join(known)}")


def came(value: Any) -> str:
    """Return a few words for any value of a file, however long or deep it is."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    return "null" if value is None else reprlib.repr(value)
