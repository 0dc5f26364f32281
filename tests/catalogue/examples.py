"""Values for every reason: usual ones, and the edges that a record may hold."""

from collections.abc import Iterator
from typing import Any

from gpuspawner.domain.reasons import VALUES_OF, Code, Reason

USUAL: dict[str, Any] = {
    "key": "image",
    "known": ["small", "large"],
    "expected": "a text",
    "got": "a list",
    "profile": "A100 instance 2g",
    "groups": ["cs101", "ml-lab"],
    "alternatives": ["CPU only", "RTX 2080 Ti share"],
    "devices": 4,
    "server": "thesis",
    "state": "granted",
    "setting": "DockerSpawner.extra_host_config",
    "why": "it names GPUs itself",
    "total": 7,
    "in_use": 5,
    "unavailable": 2,
    "since": "2026-08-21T07:04:05+00:00",
    "image": "lab/torch:1",
    "detail": "manifest unknown",
    "seconds": 600,
    "minutes": 10,
    "exit_code": 137,
    "log": "first line\nlast line",
    "actor": "root",
    "note": "power cut",
}

SINGLE: dict[str, Any] = {
    **USUAL, "devices": 1, "total": 1, "in_use": 1, "unavailable": 0, "seconds": 1, "minutes": 1,
    "exit_code": 0,
}  # fmt: skip

BROKEN: dict[str, Any] = {
    **USUAL, "total": 2, "in_use": 0, "unavailable": 2, "alternatives": [], "devices": 0,
}  # fmt: skip

EMPTY: dict[str, Any] = {
    name: [] if isinstance(value, list) else 0 if isinstance(value, int) else ""
    for name, value in USUAL.items()
}

ABSENT: dict[str, Any] = dict.fromkeys(USUAL)

EDGES = {"usual": USUAL, "single": SINGLE, "broken": BROKEN, "empty": EMPTY, "absent": ABSENT}


def make(code: Code, values: dict[str, Any]) -> Reason:
    return Reason(code, {name: values[name] for name in VALUES_OF[code]})


def every_edge() -> Iterator[Reason]:
    for code in Code:
        for values in EDGES.values():
            yield make(code, values)
