"""The lease: one record from a click to its end, and the states it may go through.

``WAITING → GRANTED → RUNNING → ENDING → ENDED``. A refusal is ENDED at once. A lease that holds
slices leaves the living only on evidence from the engine that its server does not run, or by an
administrator's force: unknown is not gone, and a hub hook is no evidence.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from gpuspawner.domain.profiles import Profile
from gpuspawner.domain.reasons import Reason
from gpuspawner.domain.slices import Slice


class State(StrEnum):
    """Where a lease stands."""

    WAITING = "waiting"
    GRANTED = "granted"  # holds slices; its server is not known to run yet
    RUNNING = "running"
    ENDING = "ending"  # somebody wants its end; the engine has not shown it yet
    ENDED = "ended"


LIVE: Final = frozenset({State.WAITING, State.GRANTED, State.RUNNING, State.ENDING})
HOLDING: Final = frozenset({State.GRANTED, State.RUNNING, State.ENDING})

_NEXT: Final[Mapping[State, frozenset[State]]] = {
    State.WAITING: frozenset({State.GRANTED, State.ENDED}),
    State.GRANTED: frozenset({State.RUNNING, State.ENDING, State.ENDED}),
    State.RUNNING: frozenset({State.ENDING, State.ENDED}),
    State.ENDING: frozenset({State.ENDED}),
    State.ENDED: frozenset(),
}


class InvalidTransitionError(Exception):
    """A state that cannot follow the present one: a bug, never a person's mistake."""


def check_transition(before: State, after: State) -> None:
    """Raise `InvalidTransitionError` unless ``after`` may follow ``before``."""
    if after not in _NEXT[before]:
        raise InvalidTransitionError(f"a lease cannot go from {before} to {after}")


class Source(StrEnum):
    """Where a finish time comes from; the record says which."""

    ENGINE = "engine"  # the engine's own record of the container
    EVENTS = "events"  # the engine's event log
    LAST_SEEN = "last-seen"  # when it was last seen alive
    NEVER_RAN = "never-ran"
    FORCED = "forced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What shows that a server does not run.

    Only an engine's adapter (from the engine's answer) or an administrator's force makes one.
    ``finished_at`` is None when the server never ran.
    """

    source: Source
    finished_at: datetime | None = None
    exit_code: int | None = None
    out_of_memory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerKey:
    """Whose server, on which hub. The hub's own spelling of the names is the only key."""

    hub_id: str
    user: str
    server: str = ""

    @property
    def lane(self) -> str:
        """One text for one server; no two servers share it, whatever their names hold."""
        return f"{len(self.hub_id)}:{self.hub_id}{len(self.user)}:{self.user}{self.server}"

    @classmethod
    def of_lane(cls, lane: str) -> "ServerKey | None":
        """Return the server of a text that `lane` made; None when it is another text."""
        parts = []
        for _ in range(2):
            length, colon, rest = lane.partition(":")
            if not (colon and length.isascii() and length.isdigit() and int(length) <= len(rest)):
                return None
            parts.append(rest[: int(length)])
            lane = rest[int(length) :]
        return cls(hub_id=parts[0], user=parts[1], server=lane)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What was asked. ``may_wait`` False is refused at once when nothing is free.

    ``alternatives`` are the other profiles that the person may use, for the refusal to name.
    ``start_seconds`` is how long after the grant its server may take to run.
    """

    key: ServerKey
    profile: Profile
    image: str | None = None
    engine: str = "docker"
    may_wait: bool = False
    start_seconds: int = 600
    alternatives: tuple[Profile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One record of the ledger. All times are aware UTC.

    ``fence`` is the number of the grant: it grows with each one and is a label on the container,
    so that a late container of an older grant is told from the present one. ``engine_id`` is the
    engine's own name of itself, where it has one: only that engine knows of its run.
    """

    lease_id: int
    key: ServerKey
    state: State
    profile: Profile
    image: str | None
    engine: str
    requested_at: datetime
    granted_at: datetime | None = None
    running_at: datetime | None = None
    start_deadline: datetime | None = None
    detached_at: datetime | None = None
    look_again_at: datetime | None = None
    last_seen_at: datetime | None = None
    finished_at: datetime | None = None
    finished_source: Source | None = None
    ended_at: datetime | None = None
    fence: int | None = None
    run_id: str | None = None
    engine_id: str | None = None
    reason: Reason | None = None
    slices: tuple[Slice, ...] = ()
    may_wait: bool = False
    start_seconds: int = 600
