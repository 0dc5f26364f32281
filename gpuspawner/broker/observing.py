"""What is observed of the world, entered into the books: devices, engines, and what runs."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from gpuspawner.broker.door import Door
from gpuspawner.domain.devices import HostInventory
from gpuspawner.domain.leases import Lease, State
from gpuspawner.domain.profiles import profile_to_dict
from gpuspawner.domain.reconciliation import EngineState, Found, Stray, may_readopt
from gpuspawner.domain.slices import Hold, slice_to_dict
from gpuspawner.domain.uses import Attribution
from gpuspawner.ledger.encoding import encode_profile
from gpuspawner.ledger.writer import Writer


class Observing(Door):
    """The part of the broker that an agent uses."""

    def observe(
        self, inventory: HostInventory, now: datetime, attribution: Attribution | None = None
    ) -> None:
        """Record what is on a host and whose it is; settle: somebody may wait for new devices."""

        def write(books: Writer) -> None:
            books.save_host(inventory, attribution)

        self._write("observe", write, settle_at=now)

    def seen_alive(self, lease_ids: Iterable[int], now: datetime) -> None:
        """Record that these leases' servers were seen running."""
        lease_ids = list(lease_ids)
        if lease_ids:
            self._write("seen-alive", lambda books: books.seen_alive(lease_ids, now))

    def note_engine(self, state: EngineState) -> None:
        """Record how an engine answered last."""
        self._write("note-engine", lambda books: books.save_engine_state(state))

    def report_strays(
        self, host_id: str, engine: str, strays: Iterable[Stray], now: datetime
    ) -> None:
        """Record what runs on a host with devices and without a lease, and settle.

        Its devices are handed out to nobody until it is gone.
        """
        strays = list(strays)

        def write(books: Writer) -> None:
            came, went = books.save_strays(host_id, engine, strays, now)
            for action, each in [("stray", x) for x in came] + [("stray-gone", x) for x in went]:
                self._note(books, now, action, target=each.name[:255])

        with self._ledger.read() as books:
            if set(books.strays().get((host_id, engine), ())) == set(strays):
                return  # a look that shows nothing new costs nobody a turn
        self._write("report-strays", write, settle_at=now)

    def readopt(
        self, found: Found, started_at: datetime, engine: str, engine_id: str | None, now: datetime
    ) -> Lease | None:
        """Enter the lease of a running server whose grant the books lack.

        Returns None where what it holds is somebody else's by now, or its server has another
        lease: then it is to be reported.
        """
        key, fence, grant = found.key, found.fence, found.grant
        assert key is not None
        assert fence is not None
        assert grant is not None

        def write(books: Writer) -> Lease | None:
            known = books.leases_by_fence([fence]).get(fence)
            if known is not None and known.key == key:
                return known  # somebody else was first
            if known is not None or books.living_of_server(key) is not None:
                return None
            pool = books.view(now)
            if not may_readopt(pool, grant):
                return None
            number = books.readopt_lease(
                {
                    "hub_id": key.hub_id, "user_name": key.user, "server_name": key.server,
                    "state": State.RUNNING, "profile": encode_profile(grant.profile),
                    "image": grant.image, "engine": engine, "may_wait": False,
                    "start_seconds": 600, "requested_at": found.made_at,
                    "granted_at": found.made_at, "running_at": started_at, "last_seen_at": now,
                    "start_deadline": found.made_at + timedelta(seconds=600), "fence": fence,
                    "run_id": found.run_id, "engine_id": engine_id,
                    "slices": [slice_to_dict(item) for item in grant.slices],
                }
            )  # fmt: skip
            group = grant.profile.share_group
            holds = [Hold(lease_id=number, slice=item, group=group) for item in grant.slices]
            books.add_holds(holds)
            for hold in holds:
                pool.add(hold)
            profile = profile_to_dict(grant.profile)["name"]
            actor = f"user:{key.user}"
            self._note(books, now, "request", number, actor=actor, detail={"profile": profile})
            slices = [item.slice_id for item in grant.slices]
            self._note(books, now, "grant", number, detail={"slices": slices, "readopted": True})
            return books.lease(number)

        return self._write("readopt", write, settle_at=now)
