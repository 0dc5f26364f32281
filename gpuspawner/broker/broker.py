"""The one door to the books: request, bind, end, settle.

Every call is one write transaction that reads what is living, asks the pure rules and writes what
they decide together with its audit records. Hub, service, agent and command line call it when
they have cause; whoever comes first does the work. Calls block: run them in a worker thread.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from gpuspawner.domain.devices import HostInventory
from gpuspawner.domain.leases import Claim, Evidence, Lease, State
from gpuspawner.domain.policy import Policy
from gpuspawner.domain.reasons import Code, Reason, RefusedError, reason
from gpuspawner.domain.settlement import Grant, Refusal, settle
from gpuspawner.domain.slices import Hold
from gpuspawner.ledger.encoding import encode_reason, encode_slice
from gpuspawner.ledger.store import Ledger
from gpuspawner.ledger.writer import Writer


class StaleGrantError(Exception):
    """The lease is not, or no longer, the one that the caller was granted: stop what you do."""


class Broker:
    """Asks the rules and writes what they decide."""

    def __init__(self, ledger: Ledger, actor: str) -> None:
        """Work on a ledger in the name of a part of the product, such as ``hub`` or ``agent``."""
        self._ledger = ledger
        self._actor = actor

    @property
    def ledger(self) -> Ledger:
        """The ledger, for reading."""
        return self._ledger

    def publish(self, policy: Policy, hub_id: str, now: datetime) -> None:
        """Make a hub's policy the one that everybody reads, and settle by it."""
        with self._ledger.write() as books:
            if books.save_policy(policy, hub_id, now):
                self._note(books, now, "publish", target=hub_id)
                self._settle(books, now)

    def request(self, claim: Claim, now: datetime) -> Lease:
        """Write a claim down and settle: the lease is granted, or waits if it may.

        Raises:
            RefusedError: the lease is ended at once with this reason, or the server has a living
                lease already (then nothing is written).
            LedgerAwayError: nothing is written.
        """
        with self._ledger.write() as books:
            living = books.living_of_server(claim.key)
            if living is not None:
                raise RefusedError(_holds(living))
            lease_id = books.add_lease(claim, now)
            self._note(
                books, now, "request", lease_id, actor=f"user:{claim.key.user}",
                detail={"profile": claim.profile.name},
            )  # fmt: skip
            self._settle(books, now, claimed=(lease_id, claim))
            lease = books.lease(lease_id)
        assert lease is not None
        if lease.state is State.ENDED:
            assert lease.reason is not None
            raise RefusedError(lease.reason)
        return lease

    def settle(self, now: datetime) -> None:
        """Decide for everybody who waits."""
        with self._ledger.write() as books:
            self._settle(books, now)

    def bind(self, lease: Lease, run_id: str, now: datetime) -> None:
        """Record which container or process was made for a grant.

        Raises:
            StaleGrantError: the grant is over: what was made must go.
        """
        with self._ledger.write() as books:
            self._present(books, lease, State.GRANTED)
            books.change_lease(lease.lease_id, State.GRANTED, run_id=run_id, last_seen_at=now)
            self._note(books, now, "bind", lease.lease_id, target=run_id)

    def run(self, lease: Lease, started_at: datetime, now: datetime) -> None:
        """Record that the server of a grant runs, by the engine's time.

        Raises:
            StaleGrantError: the grant is over: what was started must go.
        """
        with self._ledger.write() as books:
            if self._present(books, lease, State.GRANTED, State.RUNNING) is State.RUNNING:
                return
            books.change_lease(
                lease.lease_id, State.GRANTED, State.RUNNING,
                running_at=started_at, last_seen_at=now,
            )  # fmt: skip
            self._note(books, now, "run", lease.lease_id)

    def detach(self, lease_id: int, now: datetime) -> None:
        """Note that a start was cancelled. Gives nothing back: ``stop()`` or the agent does."""
        with self._ledger.write() as books:
            lease = books.lease(lease_id)
            if lease is None or lease.state not in (State.WAITING, State.GRANTED):
                return
            if lease.detached_at is None:
                books.change_lease(lease_id, lease.state, detached_at=now)
                self._note(books, now, "detach", lease_id)

    def want_end(
        self, lease_id: int, why: Reason, now: datetime, *, look_again_at: datetime | None = None
    ) -> None:
        """Ask for a lease's end where the engine has not shown it yet; holds stay held.

        ``look_again_at`` is when a call that may still be under way at the engine must be over;
        the latest that was ever given counts.
        """
        with self._ledger.write() as books:
            lease = books.lease(lease_id)
            if lease is None or lease.state is State.ENDED:
                return
            if lease.state is State.WAITING:
                self._end(books, lease, why, None, now)
                return
            given = [at for at in (lease.look_again_at, look_again_at) if at is not None]
            books.change_lease(
                lease_id, lease.state, State.ENDING, look_again_at=max(given, default=None),
                **({} if lease.reason else {"reason": encode_reason(why)}),
            )  # fmt: skip
            if lease.state is not State.ENDING:
                self._note(books, now, "ending", lease_id, why=why)

    def end(self, lease_id: int, why: Reason, evidence: Evidence, now: datetime) -> None:
        """End a lease on evidence, give its slices back and settle. Repeating it changes nothing.

        A lease that was asked to end keeps the reason it was asked with.
        """
        with self._ledger.write() as books:
            lease = books.lease(lease_id)
            if lease is None or lease.state is State.ENDED:
                return
            self._end(books, lease, why, evidence, now)
            self._settle(books, now)

    def observe(self, inventory: HostInventory, now: datetime) -> None:
        """Record a host's inventory, and settle: new devices may be what somebody waits for."""
        with self._ledger.write() as books:
            books.save_host(inventory)
            self._settle(books, now)

    def seen_alive(self, lease_ids: Iterable[int], now: datetime) -> None:
        """Record that these leases' servers were seen running."""
        lease_ids = list(lease_ids)
        if lease_ids:
            with self._ledger.write() as books:
                books.seen_alive(lease_ids, now)

    def cordon(self, target_uuid: str, note: str, actor: str, now: datetime) -> None:
        """Hand a device or an instance out no more; present leases go on."""
        with self._ledger.write() as books:
            books.save_cordon(target_uuid, note, actor, now)
            self._note(books, now, "cordon", target=target_uuid, actor=actor, detail={"note": note})

    def uncordon(self, target_uuid: str, actor: str, now: datetime) -> bool:
        """Hand a device or an instance out again; False when it was not cordoned."""
        with self._ledger.write() as books:
            if not books.delete_cordon(target_uuid):
                return False
            self._note(books, now, "uncordon", target=target_uuid, actor=actor)
            self._settle(books, now)
            return True

    def _settle(
        self, books: Writer, now: datetime, claimed: tuple[int, Claim] | None = None
    ) -> None:
        waiters = books.waiters()
        if not waiters:
            return
        if claimed is not None:
            lease_id, claim = claimed
            waiters = [
                replace(each, alternatives=claim.alternatives)
                if each.lease_id == lease_id
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
        for decision in decisions:
            lease = books.lease(decision.lease_id)
            assert lease is not None
            if isinstance(decision, Refusal):
                self._end(books, lease, decision.reason, None, now)
            else:
                self._grant(books, lease, decision, now)

    def _grant(self, books: Writer, lease: Lease, grant: Grant, now: datetime) -> None:
        books.change_lease(
            lease.lease_id,
            State.WAITING,
            State.GRANTED,
            granted_at=now,
            fence=books.next_fence(),
            start_deadline=now + timedelta(seconds=lease.start_seconds),
            slices=[encode_slice(item) for item in grant.slices],
        )
        books.add_holds(
            [Hold(lease_id=lease.lease_id, slice=item, group=grant.group) for item in grant.slices]
        )
        slices = [item.slice_id for item in grant.slices]
        self._note(books, now, "grant", lease.lease_id, detail={"slices": slices})

    def _end(
        self, books: Writer, lease: Lease, why: Reason, evidence: Evidence | None, now: datetime
    ) -> None:
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
        self._note(books, now, action, lease.lease_id, why=why, detail=detail)

    def _present(self, books: Writer, lease: Lease, *expected: State) -> State:
        present = books.lease(lease.lease_id)
        if present is None or present.state not in expected or present.fence != lease.fence:
            state = "gone" if present is None else present.state
            raise StaleGrantError(
                f"lease {lease.lease_id} with fence {lease.fence} was expected to be "
                f"{' or '.join(expected)}, and is {state}"
            )
        return present.state

    def _note(
        self, books: Writer, now: datetime, action: str, lease_id: int | None = None, *,
        actor: str | None = None, target: str | None = None, why: Reason | None = None,
        detail: dict[str, object] | None = None,
    ) -> None:  # fmt: skip
        books.add_audit(
            at=now, actor=actor or self._actor, action=action, lease_id=lease_id,
            target=target, reason=why, detail=detail,
        )  # fmt: skip


def _holds(lease: Lease) -> Reason:
    return reason(
        Code.SERVER_HOLDS,
        server=lease.key.server,
        profile=lease.profile.title,
        state=str(lease.state),
    )
