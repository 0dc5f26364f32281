"""What every call of the broker does inside: write together, settle, grant, end, and note it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeVar

from gpuspawner.broker.together import Part, Together
from gpuspawner.domain.leases import Claim, Evidence, Lease, State
from gpuspawner.domain.reasons import Code, Reason, reason
from gpuspawner.domain.settlement import Grant, Refusal, settle
from gpuspawner.domain.slices import Hold, slice_to_dict
from gpuspawner.ledger.encoding import encode_reason
from gpuspawner.ledger.store import Ledger
from gpuspawner.ledger.writer import Writer

Result = TypeVar("Result")


class Door:
    """The inside of the one door to the books."""

    def __init__(self, ledger: Ledger, actor: str) -> None:
        """Work on a ledger in the name of a part of the product, such as ``hub`` or ``agent``."""
        self._ledger = ledger
        self._actor = actor
        self._together = Together(ledger, self._settle)

    @property
    def ledger(self) -> Ledger:
        """The ledger, for reading."""
        return self._ledger

    def _write(
        self, name: str, write: Callable[[Writer], Result], *, settle_at: datetime | None = None
    ) -> Result:
        result: Result = self._together.do(Part(name=name, write=write, settle_at=settle_at))
        return result

    def _settle(self, books: Writer, now: datetime, claims: Mapping[int, Claim]) -> None:
        """Decide for who waits; ``claims`` are those of leases that this transaction made."""
        waiters = books.waiters()
        if not waiters:
            return
        if claims:
            waiters = [
                replace(each, alternatives=claims[each.lease_id].alternatives)
                if each.lease_id in claims
                else each
                for each in waiters
            ]
        pool = books.view(now)
        if pool.is_observed:
            decisions = settle(pool, waiters)
        else:
            away = reason(Code.INVENTORY_AWAY, since=None)
            decisions = [
                Refusal(lease_id=each.lease_id, reason=away)
                for each in waiters
                if not each.may_wait
            ]
        self._grant(books, [each for each in decisions if isinstance(each, Grant)], now)
        for refusal in decisions:
            if isinstance(refusal, Refusal):
                lease = books.lease(refusal.lease_id)
                assert lease is not None
                self._end(books, lease, refusal.reason, None, now)

    def _grant(self, books: Writer, grants: Sequence[Grant], now: datetime) -> None:
        if not grants:
            return
        # Above the present second as well: books that were restored or begun anew never give a
        # number again that an earlier grant's container still carries.
        fences = books.next_fences(len(grants), above=int(now.timestamp()))
        books.grant(
            [
                {
                    "number": grant.lease_id,
                    "granted_at": now,
                    "fence": fence,
                    "start_deadline": now + timedelta(seconds=grant.start_seconds),
                    "slices": [slice_to_dict(item) for item in grant.slices],
                }
                for grant, fence in zip(grants, fences, strict=True)
            ],
            [
                Hold(lease_id=grant.lease_id, slice=item, group=grant.group)
                for grant in grants
                for item in grant.slices
            ],
        )
        for grant in grants:
            slices = [item.slice_id for item in grant.slices]
            self._note(books, now, "grant", grant.lease_id, detail={"slices": slices})

    def _end(
        self, books: Writer, lease: Lease, why: Reason, evidence: Evidence | None, now: datetime,
        *, actor: str | None = None,
    ) -> None:  # fmt: skip
        why = lease.reason or why
        books.change_lease(
            lease.lease_id,
            lease.state,
            State.ENDED,
            ended_at=now,
            reason=encode_reason(why),
            finished_at=None if evidence is None else evidence.finished_at,
            finished_source=None if evidence is None else evidence.source,
        )
        books.delete_holds(lease.lease_id)
        detail: dict[str, object] | None = None
        if evidence is not None:
            detail = {"source": str(evidence.source), "exit_code": evidence.exit_code}
        action = "refuse" if lease.state is State.WAITING else "end"
        self._note(books, now, action, lease.lease_id, actor=actor, why=why, detail=detail)

    def _note(
        self, books: Writer, now: datetime, action: str, lease_id: int | None = None, *,
        actor: str | None = None, target: str | None = None, why: Reason | None = None,
        detail: dict[str, object] | None = None,
    ) -> None:  # fmt: skip
        books.add_audit(
            at=now, actor=actor or self._actor, action=action, lease_id=lease_id,
            target=target, reason=why, detail=detail,
        )  # fmt: skip
