"""Named placeholders such as ``{profile}``, filled in one pass: values are never interpreted."""

import re
from collections.abc import Mapping
from typing import Final

_PLACEHOLDER: Final = re.compile(r"\{([a-z_][a-z0-9_]*)\}")


def fill(template: str, values: Mapping[str, object]) -> str:
    """Put values into a template. Braces, percent signs and markup in a value stay as they are.

    Raises:
        ValueError: the template names a value that did not come.
    """

    def value_of(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise ValueError(f"no value came for {match[0]} of {template!r}")
        return str(values[match[1]])

    return _PLACEHOLDER.sub(value_of, template)


def names(template: str) -> frozenset[str]:
    """Return the names of a template's placeholders."""
    return frozenset(_PLACEHOLDER.findall(template))
