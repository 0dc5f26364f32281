"""Reasons: why something was refused or ended, as a code with values.

A reason carries no sentence. `gpuspawner.catalogue` renders it in the reader's language, the same
in form, API, page and panel; logs are in English. Each code names the values that its sentence
needs, so that a message can always say the rule, the number and what would work.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final


class Kind(StrEnum):
    """What sort of answer a reason is; edges map it to a status code, once."""

    INVALID = "invalid"  # the request cannot be understood: 400
    POLICY = "policy"  # understood and not allowed: 403
    CONFLICT = "conflict"  # something that exists stands against it: 409
    CAPACITY = "capacity"  # allowed, and nothing is free now: 429
    AWAY = "away"  # a part that is needed does not answer: 503
    FAILED = "failed"  # it was tried and it failed: 500
    ENDED = "ended"  # why a lease ended; never an answer to a request


HTTP_STATUS: Final[Mapping[Kind, int]] = {
    Kind.INVALID: 400,
    Kind.POLICY: 403,
    Kind.CONFLICT: 409,
    Kind.CAPACITY: 429,
    Kind.AWAY: 503,
    Kind.FAILED: 500,
}


class Code(StrEnum):
    """Every reason that the product knows. Spelled the same in API, ledger, metric and log."""

    # The request cannot be understood.
    OPTION_UNKNOWN = "option-unknown"
    OPTION_TYPE = "option-type"
    PROFILE_UNKNOWN = "profile-unknown"
    IMAGE_UNKNOWN = "image-unknown"
    QUERY_PRESELECTS = "query-preselects"
    # Understood and not allowed.
    PROFILE_NOT_ALLOWED = "profile-not-allowed"
    NOTHING_FITS = "nothing-fits"
    CAP_NOT_HELD = "cap-not-held"
    # Something that exists stands against it.
    SERVER_HOLDS = "server-holds"
    CONTAINER_UNKNOWN = "container-unknown"
    SITE_SETTING = "site-setting"
    # Nothing is free now.
    ALL_IN_USE = "all-in-use"
    # A part is away.
    LEDGER_AWAY = "ledger-away"
    ENGINE_AWAY = "engine-away"
    INVENTORY_AWAY = "inventory-away"
    POLICY_AWAY = "policy-away"
    # Tried and failed.
    IMAGE_MISSING = "image-missing"
    PULL_FAILED = "pull-failed"
    PULL_TOO_LONG = "pull-too-long"
    CREATE_FAILED = "create-failed"
    START_FAILED = "start-failed"
    DIED_AT_BOOT = "died-at-boot"
    NOT_READY = "not-ready"
    INTERNAL = "internal"
    # Endings.
    STOPPED = "stopped"
    EXITED = "exited"
    OUT_OF_MEMORY = "out-of-memory"
    REMOVED = "removed"
    GIVEN_UP = "given-up"
    START_EXPIRED = "start-expired"
    FORGOTTEN = "forgotten"
    FORCED = "forced"


_KINDS: Final[Mapping[Kind, tuple[Code, ...]]] = {
    Kind.INVALID: (
        Code.OPTION_UNKNOWN, Code.OPTION_TYPE, Code.PROFILE_UNKNOWN, Code.IMAGE_UNKNOWN,
        Code.QUERY_PRESELECTS,
    ),
    Kind.POLICY: (Code.PROFILE_NOT_ALLOWED, Code.NOTHING_FITS, Code.CAP_NOT_HELD),
    Kind.CONFLICT: (Code.SERVER_HOLDS, Code.CONTAINER_UNKNOWN, Code.SITE_SETTING),
    Kind.CAPACITY: (Code.ALL_IN_USE,),
    Kind.AWAY: (
        Code.LEDGER_AWAY, Code.ENGINE_AWAY, Code.INVENTORY_AWAY, Code.POLICY_AWAY,
    ),
    Kind.FAILED: (
        Code.IMAGE_MISSING, Code.PULL_FAILED, Code.PULL_TOO_LONG, Code.CREATE_FAILED,
        Code.START_FAILED, Code.DIED_AT_BOOT, Code.NOT_READY, Code.INTERNAL,
    ),
    Kind.ENDED: (
        Code.STOPPED, Code.EXITED, Code.OUT_OF_MEMORY, Code.REMOVED, Code.GIVEN_UP,
        Code.START_EXPIRED, Code.FORGOTTEN, Code.FORCED,
    ),
}  # fmt: skip

KIND_OF: Final[Mapping[Code, Kind]] = {
    code: kind for kind, codes in _KINDS.items() for code in codes
}

VALUES_OF: Final[Mapping[Code, frozenset[str]]] = {
    Code.OPTION_UNKNOWN: frozenset({"key", "known"}),
    Code.OPTION_TYPE: frozenset({"key", "expected", "got"}),
    Code.PROFILE_UNKNOWN: frozenset({"key", "got", "known"}),
    Code.IMAGE_UNKNOWN: frozenset({"key", "got", "known"}),
    Code.QUERY_PRESELECTS: frozenset(),
    Code.PROFILE_NOT_ALLOWED: frozenset({"profile", "groups", "alternatives"}),
    Code.NOTHING_FITS: frozenset({"profile", "devices", "alternatives"}),
    Code.CAP_NOT_HELD: frozenset({"profile", "alternatives"}),
    Code.SERVER_HOLDS: frozenset({"server", "profile", "state"}),
    Code.CONTAINER_UNKNOWN: frozenset({"server"}),
    Code.SITE_SETTING: frozenset({"setting", "why"}),
    Code.ALL_IN_USE: frozenset({"profile", "total", "in_use", "unavailable", "alternatives"}),
    Code.LEDGER_AWAY: frozenset(),
    Code.ENGINE_AWAY: frozenset(),
    Code.INVENTORY_AWAY: frozenset({"since"}),
    Code.POLICY_AWAY: frozenset(),
    Code.IMAGE_MISSING: frozenset({"image"}),
    Code.PULL_FAILED: frozenset({"image", "detail"}),
    Code.PULL_TOO_LONG: frozenset({"image", "seconds"}),
    Code.CREATE_FAILED: frozenset({"detail"}),
    Code.START_FAILED: frozenset({"detail"}),
    Code.DIED_AT_BOOT: frozenset({"exit_code", "log"}),
    Code.NOT_READY: frozenset({"seconds"}),
    Code.INTERNAL: frozenset(),
    Code.STOPPED: frozenset(),
    Code.EXITED: frozenset({"exit_code"}),
    Code.OUT_OF_MEMORY: frozenset(),
    Code.REMOVED: frozenset(),
    Code.GIVEN_UP: frozenset(),
    Code.START_EXPIRED: frozenset({"seconds"}),
    Code.FORGOTTEN: frozenset({"minutes"}),
    Code.FORCED: frozenset({"actor", "note"}),
}


@dataclass(frozen=True, slots=True)
class Reason:
    """A code with its values (JSON types only: text, numbers, lists of them, None).

    Raises:
        ValueError: the values are not exactly those that the code names.
    """

    code: Code
    values: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        expected = VALUES_OF[self.code]
        if set(self.values) != expected:
            raise ValueError(
                f"reason {self.code} takes the values {sorted(expected)}, got {sorted(self.values)}"
            )

    @property
    def kind(self) -> Kind:
        """What sort of answer this is."""
        return KIND_OF[self.code]


class RefusedError(Exception):
    """A request is refused. Carries the reason; edges render it and choose the status."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(f"{reason.code}: {dict(reason.values)}")
        self.reason = reason


def reason(code: Code, **values: Any) -> Reason:
    """Shorthand for ``Reason(code, values)``."""
    return Reason(code, values)
