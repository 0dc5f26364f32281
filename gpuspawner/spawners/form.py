"""The options form: cards for the profiles, with what is free now. Works without JavaScript."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuspawner.catalogue import Catalogue
from gpuspawner.spawners.site import Site


def options_from_form(data: Mapping[str, Any]) -> dict[str, Any]:
    """Turn form fields into options; what does not belong there is judged in ``start()``.

    Fields come as lists of texts; one that stands alone and is empty was not filled in.
    """
    options = {}
    for key, value in data.items():
        if key == "_xsrf":
            continue
        single = value[0] if isinstance(value, list) and len(value) == 1 else value
        if single != "":
            options[key] = single
    return options


@dataclass
class Form:
    """One rendering of the form for one person."""

    site: Site
    groups: frozenset[str]
    chosen: Mapping[str, Any]
    images: list[str]
    reader: Catalogue

    async def render(self) -> str:
        """Return the form's HTML."""
        return ""
