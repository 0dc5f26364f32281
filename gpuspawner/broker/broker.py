"""The one door to the books: request, bind, end, settle.

Every call is one write transaction that reads what is living, asks the pure rules and writes what
they decide together with its audit records. Hub, service, agent and command line call it when
they have cause; whoever comes first does the work. Calls block: run them in a worker thread.
"""

from dataclasses import replace
from datetime import datetime

from gpuspawner.broker.observing import Observing
from gpuspawner.broker.together import Part
from gpuspawner.domain.leases import Claim, Evidence, Lease, Source, State
from gpuspawner.domain.policy import Policy
from gpuspawner.domain.reasons import Code, Reason, RefusedError, reason
from gpuspawner.ledger.encoding import encode_reason
from gpuspawner.ledger.writer import Writer


class StaleGrantError(Exception):
    """The lease is not, or no longer, the one that the caller was granted: stop what you do."""


class Broker(Observing):
    """Asks the rules and writes what they decide."""

    def publish(self, policy: Policy, hub_id: str, now: datetime) -> None:
        """Make a hub's policy the one that everybody reads, and settle by it."""

        def write(books: Writer) -> None:
            if books.save_policy(policy, hub_id, now):
                self._note(books, now, "publish", target=hub_id)

        self._write("publish", write, settle_at=now)

    def request(self, claim: Claim, now: datetime) -> Lease:
        """Write a claim down and settle: the lease is granted, or waits if it may.

        Raises:
            RefusedError: the lease is ended at once with this reason, or the server has a living
                lease already (then nothing is written).
            LedgerAwayError: nothing is written.
        """

        def write(books: Writer) -> int:
            living = books.living_of_server(claim.key)
            if living is not None:
                raise RefusedError(_holds(living))
            lease_id = books.add_lease(claim, now)
            self._note(
                books, now, "request", lease_id, actor=f"user:{claim.key.user}",
                detail={"profile": claim.profile.name},
            )  # fmt: skip
            return lease_id

        lease: Lease | None = self._together.do(
            Part(
                name="request",
                write=write,
                settle_at=now,
                claim=claim,
                then=lambda books, it: books.lease(it),
            )
        )
        assert lease is not None
        if lease.state is State.ENDED:
            assert lease.reason is not None
            raise RefusedError(lease.reason)
        return lease

    def settle(self, now: datetime) -> None:
        """Decide for everybody who waits."""
        self._write("settle", lambda _books: None, settle_at=now)

    def bind(self, lease: Lease, run_id: str, now: datetime, engine_id: str | None = None) -> None:
        """Record which container or process was made for a grant, and by which engine.

        Raises:
            StaleGrantError: the grant is over: what was made must go.
        """

        def write(books: Writer) -> None:
            self._present(books, lease, State.GRANTED)
            books.change_lease(
                lease.lease_id, State.GRANTED,
                run_id=run_id, engine_id=engine_id, last_seen_at=now,
            )  # fmt: skip
            self._note(books, now, "bind", lease.lease_id, target=run_id)

        self._write("bind", write)

    def run(
        self, lease: Lease, started_at: datetime, now: datetime, run_id: str | None = None
    ) -> None:
        """Record that the server of a grant runs, by the engine's time.

        ``run_id`` is what runs, where the one who made it did not live to record that.

        Raises:
            StaleGrantError: the grant is over: what was started must go.
        """

        def write(books: Writer) -> None:
            if self._present(books, lease, State.GRANTED, State.RUNNING) is State.RUNNING:
                return
            books.change_lease(
                lease.lease_id, State.GRANTED, State.RUNNING,
                running_at=started_at, last_seen_at=now,
                **({"run_id": run_id} if run_id and lease.run_id is None else {}),
            )  # fmt: skip
            self._note(books, now, "run", lease.lease_id)

        self._write("run", write)

    def detach(self, lease_id: int, now: datetime) -> None:
        """Note that a start was cancelled. Gives nothing back: ``stop()`` or the agent does."""

        def write(books: Writer) -> None:
            lease = books.lease(lease_id)
            if lease is None or lease.state not in (State.WAITING, State.GRANTED):
                return
            if lease.detached_at is None:
                books.change_lease(lease_id, lease.state, detached_at=now)
                self._note(books, now, "detach", lease_id)

        self._write("detach", write)

    def want_end(
        self, lease_id: int, why: Reason, now: datetime, *, look_again_at: datetime | None = None
    ) -> None:
        """Ask for a lease's end where the engine has not shown it yet; holds stay held.

        ``look_again_at`` is when a call that may still be under way at the engine must be over;
        the latest that was ever given counts.
        """

        def write(books: Writer) -> None:
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

        self._write("want-end", write)

    def end(self, lease_id: int, why: Reason, evidence: Evidence, now: datetime) -> None:
        """End a lease on evidence, give its slices back and settle. Repeating it changes nothing.

        A lease that was asked to end keeps the reason it was asked with.
        """

        def write(books: Writer) -> None:
            lease = books.lease(lease_id)
            if lease is not None and lease.state is not State.ENDED:
                self._end(books, lease, why, evidence, now)

        self._write("end", write, settle_at=now)

    def force_end(self, lease_id: int, note: str, actor: str, now: datetime) -> bool:
        """End a lease on an administrator's word alone, where no engine will ever show its end.

        Returns False when it has ended already. What may still run under it is stopped as soon as
        an agent sees it.
        """

        def write(books: Writer) -> bool:
            lease = books.lease(lease_id)
            if lease is None or lease.state is State.ENDED:
                return False
            name = actor.partition(":")[2] or actor  # people read it: without the kind of actor
            why = reason(Code.FORCED, actor=name, note=note)
            # The reason it was asked to end with is no longer why it ends.
            forced = replace(lease, reason=None)
            evidence = None if lease.state is State.WAITING else Evidence(source=Source.FORCED)
            self._end(books, forced, why, evidence, now, actor=actor)
            return True

        return self._write("force-end", write, settle_at=now)

    def cordon(self, target_uuid: str, note: str, actor: str, now: datetime) -> None:
        """Hand a device or an instance out no more; present leases go on."""

        def write(books: Writer) -> None:
            books.save_cordon(target_uuid, note, actor, now)
            self._note(books, now, "cordon", target=target_uuid, actor=actor, detail={"note": note})

        self._write("cordon", write)

    def uncordon(self, target_uuid: str, actor: str, now: datetime) -> bool:
        """Hand a device or an instance out again; False when it was not cordoned."""

        def write(books: Writer) -> bool:
            if not books.delete_cordon(target_uuid):
                return False
            self._note(books, now, "uncordon", target=target_uuid, actor=actor)
            return True

        return self._write("uncordon", write, settle_at=now)

    def _present(self, books: Writer, lease: Lease, *expected: State) -> State:
        present = books.lease(lease.lease_id)
        if present is None or present.state not in expected or present.fence != lease.fence:
            state = "gone" if present is None else present.state
            raise StaleGrantError(
                f"lease {lease.lease_id} with fence {lease.fence} was expected to be "
                f"{' or '.join(expected)}, and is {state}"
            )
        return present.state


def _holds(lease: Lease) -> Reason:
    return reason(
        Code.SERVER_HOLDS,
        server=lease.key.server,
        profile=lease.profile.title,
        state=str(lease.state),
    )
