"""What gpuspawner guarantees, each in one or two sentences, by its id."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Guarantee:
    """A guarantee: a title for lists, and what holds."""

    title: str
    text: str


PROMISES: Final[dict[str, Guarantee]] = {
    "P1": Guarantee(
        "One holder",
        "A GPU, an instance or a share is held by one server at most. The shares of a GPU never "
        "add up to more memory than it may give.",
    ),
    "P2": Guarantee(
        "Unknown is not gone",
        "A lease ends when the engine shows that its server does not run, or when an administrator "
        "forces it; never because somebody did not answer or because the hub says so.",
    ),
    "P3": Guarantee(
        "Nothing off the record",
        "No GPU is handed out before the grant is stored. Each grant, refusal and end has exactly "
        "one record that says who and why.",
    ),
    "P4": Guarantee(
        "What a container sees",
        "A container sees the devices of its lease, named one by one, and no others. Without a "
        "lease it sees none.",
    ),
    "P5": Guarantee(
        "Missing is not zero",
        "What is not known is shown as `—`, never as 0. It ends nothing, frees nothing and raises "
        "no alarm by itself.",
    ),
    "P6": Guarantee(
        "Reasons in words",
        "Each refusal and each end has a code with values. Form, page and API say the same about "
        "it in the reader's language: which rule, which numbers, and what would work.",
    ),
    "P7": Guarantee(
        "Work without GPU goes on",
        "Trouble in service, agent, driver, ledger or engine stops no notebook that has no GPU, "
        "and does not block the hub. A share whose only cap needs a part that is away is not "
        "granted.",
    ),
    "P8": Guarantee(
        "One home for each rule",
        "What may be handed out is decided in one place, from what it is given and nothing else. "
        "Pages show verdicts and do not work them out again.",
    ),
    "P9": Guarantee(
        "No secret in sight",
        "No token, password or key stands in a log, a label, an answer or a process's arguments.",
    ),
}
RELIABILITY: Final[dict[str, Guarantee]] = {
    "R1": Guarantee(
        "A grant is one transaction",
        "What is free is read and handed out in one transaction, and the database itself refuses "
        "what would be held twice, however many ask at once and from however many processes.",
    ),
    "R2": Guarantee(
        "An end has evidence",
        "A lease ends only when the engine shows that the container does not run, or when an "
        "administrator forces it. What the hub reports alone ends nothing.",
    ),
    "R3": Guarantee(
        "Trouble keeps what is held",
        "Errors, time-outs and refused connections of the engine or the hub keep leases and "
        "servers as they are, for as long as it takes. The trouble is shown, and nothing is "
        "started twice.",
    ),
    "R4": Guarantee(
        "The books are compared",
        "At the start, every 30 seconds and after each gap in the engine's events, leases are "
        "compared with engine and hub and put right. What belongs to others is left alone.",
    ),
    "R5": Guarantee(
        "Twice is like once",
        "A start, stop, end or cancel that is repeated, or whose answer was lost, has the same "
        "result as one that was done once.",
    ),
    "R6": Guarantee(
        "Late starts are stopped",
        "Each grant has a number that only grows, on its record and on its container. A container "
        "that comes after its grant is over does not keep the GPU.",
    ),
    "R7": Guarantee(
        "A crash repairs itself",
        "If hub, service, agent or engine, or two of them, are killed between any two steps, the "
        "books are right again within 60 seconds, and other people's servers are untouched.",
    ),
    "R13": Guarantee(
        "Storage may fail",
        "While the ledger cannot be written nothing is granted, and who asks is told when to try "
        "again; it heals without a restart. Copies can be made, checked and restored.",
    ),
    "R14": Guarantee(
        "One slow part slows no other",
        "A service that is down or an engine that hangs stops no notebook without GPU, and the hub "
        "goes on answering at its usual speed.",
    ),
}
SECURITY: Final[dict[str, Guarantee]] = {
    "S1": Guarantee(
        "Each route has its rule",
        "Each route and method says who may use it, and nobody else gets through; a route without "
        "such a rule does not pass the tests.",
    ),
    "S2": Guarantee(
        "Changes ask again who it is",
        "Whoever changes something is looked up at the hub at that moment. A right that was taken "
        "away, a token that was revoked or a person who was removed changes nothing more.",
    ),
    "S3": Guarantee(
        "Only our own pages write",
        "A change by cookie needs the value of a page of ours, and a page of another origin can "
        "neither change anything nor listen.",
    ),
}
GUARANTEES: Final[dict[str, Guarantee]] = {**PROMISES, **RELIABILITY, **SECURITY}

# Guarantees that no test proves yet; one with a test may not stand here.
NOT_YET: Final[frozenset[str]] = frozenset()
