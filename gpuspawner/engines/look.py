"""What an engine says about a server, in four words: running, made, finished, absent.

A fifth, unknown, is an exception, `EngineUnknownError`, so that nobody can take it for absent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from gpuspawner.domain.leases import Evidence, Lease, Source
from gpuspawner.domain.reconciliation import Found


class EngineError(Exception):
    """The engine said no, or said nothing."""


class EngineUnknownError(EngineError):
    """The engine did not answer, or answered that it is in trouble: nothing is known.

    The call may still be carried out later; whoever made a creating call must look again.
    ``answered`` is set when the engine did answer, with an error of its own: the text says which.
    """

    def __init__(self, message: str, *, answered: bool = False) -> None:
        super().__init__(message)
        self.answered = answered


class EngineRefusedError(EngineError):
    """The engine understood and refused; nothing was done."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The server runs (a paused one too: it holds what it has)."""

    run_id: str
    started_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The container is there and was never started."""

    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The server ran and has ended; what it ran in is still there."""

    run_id: str
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """The engine is sure that there is nothing; ``evidence`` is the best record of its end."""

    evidence: Evidence


Look = Running | Made | Finished | Absent


def evidence_of(look: Look) -> Evidence | None:
    """Return what a look proves; None when it proves no end."""
    if isinstance(look, Finished | Absent):
        return look.evidence
    if isinstance(look, Made):
        return Evidence(source=Source.NEVER_RAN)
    return None


class Runtime(Protocol):
    """What the agent asks of an engine. Calls block and have a time limit."""

    def look(self, lease: Lease) -> Look:
        """Look at the server of a lease.

        Raises:
            EngineUnknownError: nothing is known.
        """
        ...

    def clear(self, lease: Lease) -> None:
        """Stop and remove whatever runs under a lease that is to end. Repeating it is harmless.

        Raises:
            EngineError: it could not be done.
        """
        ...

    def everything(self) -> Sequence[Found]:
        """Return everything that is there, whoever made it, running or not.

        Raises:
            EngineUnknownError: nothing is known.
        """
        ...

    def look_at(self, run_id: str) -> Look | None:
        """Look at one of them by its id; None when it is gone.

        Raises:
            EngineUnknownError: nothing is known.
        """
        ...

    def clear_run(self, run_id: str) -> None:
        """Stop and remove one of them. Repeating it is harmless.

        Raises:
            EngineError: it could not be done.
        """
        ...

    def identity(self) -> str | None:
        """Return the engine's own name of itself; None where it has none.

        Raises:
            EngineUnknownError: it does not answer.
        """
        ...
