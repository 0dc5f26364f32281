"""The page of reasons: every code, what sort of answer it is, and its words in both languages."""

from typing import Any, Final

from gpuspawner.catalogue import SUPPORTED, Catalogue
from gpuspawner.catalogue.words import SHORT
from gpuspawner.domain.reasons import HTTP_STATUS, KIND_OF, VALUES_OF, Code, Kind, Reason
from tools.docs.markdown import code

# Reasons that the catalogue knows and nothing gives yet; a test holds this list true.
NOT_GIVEN_YET: Final = frozenset({Code.POLICY_AWAY})

_HEAD: Final = """
# Reasons

Whatever is refused or ended has a reason: a code with values. The code is the same in the REST
answers, the ledger, the audit and the log; the words are made by one catalogue in the reader's
language (English, Simplified Chinese), from the browser's `Accept-Language`, else from the setting
`language`. Logs are in English.

In the examples the values are invented. A start that is refused answers with the status below; on
429 and 503 there is a `Retry-After` of [`retry_seconds`](settings.md#retry_seconds).
"""
_KINDS: Final = {
    Kind.INVALID: "The request cannot be understood",
    Kind.POLICY: "Understood and not allowed",
    Kind.CONFLICT: "Something that exists stands against it",
    Kind.CAPACITY: "Nothing is free now",
    Kind.AWAY: "A part does not answer",
    Kind.FAILED: "Tried and failed",
    Kind.ENDED: "Why a lease ended",
}
_LANGUAGES: Final = {"en": "English", "zh_Hans": "中文"}
_VALUES: Final[dict[str, Any]] = {
    "key": "profile",
    "known": ["cpu", "share", "whole"],
    "expected": "a text",
    "got": "whole-h200",
    "profile": "Small GPU share",
    "groups": ["ml101"],
    "alternatives": ["CPU only"],
    "devices": 4,
    "server": "thesis",
    "state": "running",
    "setting": "device_requests",
    "why": "gpuspawner attaches devices by the lease, and nobody else may",
    "total": 4,
    "in_use": 3,
    "unavailable": 1,
    "since": "2026-09-01T08:00:00+00:00",
    "image": "lab/pytorch:2026.2",
    "detail": "manifest unknown",
    "seconds": 900,
    "exit_code": 137,
    "log": "ModuleNotFoundError: No module named 'jupyterhub'",
    "actor": "admin",
    "note": "power cut at noon",
}
_OF_CODE: Final[dict[Code, dict[str, Any]]] = {
    Code.OPTION_UNKNOWN: {"key": "gpus", "known": ["profile", "image"]},
    Code.OPTION_TYPE: {"got": "a list"},
    Code.IMAGE_UNKNOWN: {"key": "image", "got": "lab/jax", "known": ["lab/pytorch:2026.2"]},
    Code.NOTHING_FITS: {"profile": "Whole H100"},
    Code.NOT_READY: {"seconds": 120},
    Code.DIED_AT_BOOT: {"exit_code": 1},
    Code.START_EXPIRED: {"seconds": 1080},
    Code.FORGOTTEN: {"minutes": 10},
}


def page() -> str:
    """Return the page."""
    parts = [_HEAD.strip()]
    for kind, title in _KINDS.items():
        status = HTTP_STATUS.get(kind)
        parts.append(f"## {title}")
        parts.append(
            "Shown where an ended server is explained; never an answer to a request."
            if status is None
            else f"HTTP status {status}."
        )
        parts += [_section(each) for each in Code if KIND_OF[each] is kind]
    return "\n\n".join(parts)


def _section(which: Code) -> str:
    lines = [f"### `{which}`"]
    if which in NOT_GIVEN_YET:
        lines.append("Not given by this version.")
    names = sorted(VALUES_OF[which])
    lines.append(f"Values: {', '.join(map(code, names))}." if names else "No values.")
    values = {**_VALUES, **_OF_CODE.get(which, {})}
    why = Reason(which, {name: values[name] for name in names})
    for locale in SUPPORTED:
        words = Catalogue(locale)
        told = words.reason(why).replace("\n", "\n> \n> ")
        lines.append(f"> **{_LANGUAGES[locale]}** ({words.text(SHORT[which])}): {told}")
    return "\n\n".join(lines)
