"""Short English words as data: a few for each reason, and for values that are words themselves."""

from collections.abc import Mapping
from typing import Final

from gpuspawner.domain.reasons import Code

SHORT: Final[Mapping[Code, str]] = {
    Code.OPTION_UNKNOWN: "Unknown option",
    Code.OPTION_TYPE: "Wrong kind of value",
    Code.PROFILE_UNKNOWN: "Unknown profile",
    Code.IMAGE_UNKNOWN: "Unknown image",
    Code.QUERY_PRESELECTS: "A link starts no GPU",
    Code.PROFILE_NOT_ALLOWED: "Not open to you",
    Code.NOTHING_FITS: "No GPU fits",
    Code.CAP_NOT_HELD: "Memory limit not enforced",
    Code.SERVER_HOLDS: "Server has a session",
    Code.CONTAINER_UNKNOWN: "Container state unknown",
    Code.SITE_SETTING: "Site setting in the way",
    Code.ALL_IN_USE: "All taken",
    Code.LEDGER_AWAY: "Ledger not answering",
    Code.ENGINE_AWAY: "Engine not answering",
    Code.INVENTORY_AWAY: "No GPU readings",
    Code.POLICY_AWAY: "Permissions not checkable",
    Code.IMAGE_MISSING: "Image missing",
    Code.PULL_FAILED: "Image not fetched",
    Code.PULL_TOO_LONG: "Image took too long",
    Code.CREATE_FAILED: "Container not created",
    Code.START_FAILED: "Container not started",
    Code.DIED_AT_BOOT: "Died while starting",
    Code.NOT_READY: "Did not answer in time",
    Code.INTERNAL: "Internal error",
    Code.STOPPED: "Stopped",
    Code.EXITED: "Ended by itself",
    Code.OUT_OF_MEMORY: "Out of memory (RAM)",
    Code.REMOVED: "Container removed",
    Code.GIVEN_UP: "Given up",
    Code.START_EXPIRED: "Start took too long",
    Code.FORGOTTEN: "The hub lost it",
    Code.FORCED: "Ended by the staff",
}

# Values that are English words; others of the same value are shown as they come.
WORDED_VALUES: Final[Mapping[tuple[Code, str], Mapping[str, str]]] = {
    (Code.OPTION_TYPE, "expected"): {"a text": "a text", "a mapping": "a mapping"},
    (Code.OPTION_TYPE, "got"): {
        "a text": "a text",
        "a mapping": "a mapping",
        "a list": "a list",
        "a number": "a number",
        "true or false": "true or false",
        "nothing": "nothing",
    },
    (Code.SERVER_HOLDS, "state"): {
        "waiting": "waiting",
        "granted": "starting",
        "running": "running",
        "ending": "stopping",
    },
}

# How the items of a list, and the sentences of a text, follow one another.
LIST_SEPARATOR: Final[Mapping[str, str]] = {"en": ", ", "zh_Hans": "、"}
SENTENCE_SEPARATOR: Final[Mapping[str, str]] = {"en": " ", "zh_Hans": ""}
