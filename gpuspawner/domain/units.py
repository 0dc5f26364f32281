"""Quantities and their spelling. Memory is counted in MiB everywhere inside the product."""

import re

MIB = 1024 * 1024

_UNITS_MIB = {"m": 1, "mi": 1, "mib": 1, "g": 1024, "gi": 1024, "gib": 1024, "t": 1024**2,
              "ti": 1024**2, "tib": 1024**2}  # fmt: skip
_MEMORY = re.compile(r"\s*(\d{1,12}(?:\.\d{1,12})?)\s*([a-zA-Z]*)\s*")


def parse_memory_mib(text: str | int) -> int:
    """Read a memory size such as ``16GiB``, ``512 MiB`` or ``8G`` as whole MiB.

    ``G`` and ``GB``-less spellings are binary, like Docker's and JupyterHub's. A bare number has
    no unit and is refused, because half of its readers would take it for bytes.

    Raises:
        ValueError: not a size, no unit, a unit that is not known, or not above zero.
    """
    match = _MEMORY.fullmatch(text) if isinstance(text, str) else None
    factor = _UNITS_MIB.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"expected a memory size with its unit, such as '8GiB', got {text!r}")
    mib = int(float(match[1]) * factor)
    if mib <= 0:
        raise ValueError(f"expected a memory size above zero, got {text!r}")
    return mib


def format_memory_mib(memory_mib: int | None) -> str:
    """Spell MiB for people: ``10 GiB``, ``9.5 GiB``, ``512 MiB``; unknown is a dash, never 0."""
    if memory_mib is None:
        return "—"
    if memory_mib < 1024:
        return f"{memory_mib} MiB"
    return f"{memory_mib / 1024:.1f}".removesuffix(".0") + " GiB"
