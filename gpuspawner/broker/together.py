"""Writes of several threads in one transaction, with one settlement at its end.

A durable commit, the line before the database and the look at the pool cost the same for one write
as for twenty. So whoever writes while another thread writes leaves its part in line, and the next
transaction carries out all that wait there. Where one of them is refused, the transaction is
rolled back and each is carried out alone: it takes nothing of the others with it. Nobody is told
of success before the commit.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

from gpuspawner.domain.leases import Claim
from gpuspawner.ledger.store import Ledger, LedgerAwayError
from gpuspawner.ledger.writer import Writer

Result = TypeVar("Result")

MOST_AT_ONCE: Final = 50

Settle = Callable[[Writer, datetime, Mapping[int, Claim]], None]


@dataclass(eq=False, kw_only=True)
class Part(Generic[Result]):
    """What one caller wants written.

    ``write`` is carried out first; with ``settle_at`` the transaction is settled once after all
    parts were written; ``then``, if given, reads what came of it and makes the result. ``name`` is
    that of its step.
    """

    name: str
    write: Callable[[Writer], Result]
    settle_at: datetime | None = None
    claim: Claim | None = None  # its alternatives are for the refusal to name
    then: Callable[[Writer, Result], Any] | None = None

    _written: Any = None
    _result: Any = None
    _error: BaseException | None = None
    _leads: bool = False
    _woken: threading.Event = field(default_factory=threading.Event)


class Together:
    """The line of one process before one ledger. Safe to call from several threads."""

    def __init__(self, ledger: Ledger, settle: Settle) -> None:
        """Take the ledger, and what settles inside one of its transactions."""
        self._ledger = ledger
        self._settle = settle
        self._guard = threading.Lock()
        self._line: list[Part[Any]] = []
        self._busy = False

    def do(self, part: Part[Result]) -> Any:
        """Carry out a part, alone or with others; return once it is committed.

        Raises:
            LedgerAwayError: nothing of it was written.
            Exception: what the part itself raised; nothing of it was written.
        """
        with self._guard:
            self._line.append(part)
            part._leads = not self._busy
            self._busy = True
        if not part._leads:
            self._wait(part)
        if part._leads:
            self._carry_out()
        if part._error is not None:
            raise part._error
        return part._result

    def _wait(self, part: Part[Any]) -> None:
        if part._woken.wait(self._ledger.busy_seconds):
            return
        with self._guard:
            if part in self._line and not part._leads:
                self._line.remove(part)
                raise LedgerAwayError("the ledger is busy: another write of this process hangs")
        part._woken.wait()  # it is being carried out, which has time limits of its own

    def _carry_out(self) -> None:
        """Lead one transaction, then hand the lead to who came meanwhile."""
        parts: list[Part[Any]] = []
        try:
            self._transact(parts)
        except LedgerAwayError as error:
            self._take(parts)  # also those that came before a transaction could begin
            for part in parts:
                part._error = LedgerAwayError(str(error))
        except Exception as error:  # noqa: BLE001 - it is the caller's
            self._take(parts)
            if len(parts) == 1:
                parts[0]._error = error
            else:
                self._each_alone(parts)
        except BaseException as error:
            self._take(parts)
            for part in parts:
                part._error = error
            raise
        finally:
            self._hand_on(parts)

    def _transact(self, parts: list[Part[Any]]) -> None:
        steps = self._ledger.steps
        with self._ledger.write() as books:
            self._take(parts)  # only now: whoever came while we waited for our turn goes along
            for part in parts:
                part._written = part.write(books)
            at = max((part.settle_at for part in parts if part.settle_at), default=None)
            if at is not None:
                claims = {part._written: part.claim for part in parts if part.claim is not None}
                self._settle(books, at, claims)
            for part in parts:
                part._result = (
                    part._written if part.then is None else part.then(books, part._written)
                )
            for part in parts:
                steps.at(f"ledger:{part.name}:before-commit")
        for part in parts:
            steps.at(f"ledger:{part.name}:after-commit")

    def _each_alone(self, parts: list[Part[Any]]) -> None:
        for part in parts:
            try:
                self._transact([part])
            except Exception as error:  # noqa: BLE001 - it is this caller's, and of no other
                part._error = error

    def _hand_on(self, parts: list[Part[Any]]) -> None:
        """Wake who is done, and who leads next."""
        with self._guard:
            following = self._line[0] if self._line else None
            self._busy = following is not None
            if following is not None:
                following._leads = True
        for part in [*parts, *([following] if following else [])]:
            part._woken.set()

    def _take(self, parts: list[Part[Any]]) -> None:
        """Take those at the head of the line, unless they were taken already."""
        if not parts:
            with self._guard:
                parts.extend(self._line[:MOST_AT_ONCE])
                del self._line[:MOST_AT_ONCE]
