"""Questions to the ledger, inside one transaction."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, desc, func, select, union

from gpuspawner.domain.devices import DeviceUUID, HostId, HostInventory
from gpuspawner.domain.leases import HOLDING, LIVE, Lease, ServerKey, State
from gpuspawner.domain.policy import Policy
from gpuspawner.domain.pool import Pool
from gpuspawner.domain.reconciliation import EngineState, Stray
from gpuspawner.domain.settlement import Waiter
from gpuspawner.domain.slices import Hold
from gpuspawner.domain.uses import Attribution
from gpuspawner.ledger import tables
from gpuspawner.ledger.encoding import (
    decode_attribution,
    decode_hold,
    decode_inventory,
    decode_lease,
    decode_policy,
    decode_profile,
    decode_reason,
)

# Made once: making a statement takes longer than running it.
_POLICY = select(tables.pool.c.policy)
_HOSTS = select(
    tables.hosts.c.host_id, tables.hosts.c.observed_at, tables.hosts.c.inventory
).order_by(tables.hosts.c.host_id)
_ATTRIBUTIONS = select(
    tables.hosts.c.host_id, tables.hosts.c.observed_at, tables.hosts.c.attribution
).where(tables.hosts.c.attribution.is_not(None))
_STRAYS = select(tables.strays).order_by(tables.strays.c.name)
_ENGINES = select(tables.engines).order_by(tables.engines.c.host_id, tables.engines.c.engine)
_HUB_IDS = union(select(tables.leases.c.hub_id).distinct(), select(tables.pool.c.published_by))
_CORDONS = select(tables.cordons.c.target_uuid, tables.cordons.c.note)
_HOLDS = select(tables.holds)
_HOLDS_OF = _HOLDS.where(tables.holds.c.lease_id.in_(bindparam("numbers", expanding=True)))
_HOLDS_SUM = select(func.count(), func.coalesce(func.sum(tables.holds.c.lease_id), 0)).select_from(
    tables.holds
)
_LAST_RECORD = select(func.coalesce(func.max(tables.audit.c.audit_id), 0))
_LEASES_IN_RECORDS = (
    select(tables.audit.c.lease_id)
    .where(
        tables.audit.c.audit_id > bindparam("record"),
        tables.audit.c.action.in_(("grant", "end")),
    )
    .limit(bindparam("most"))
)
_LEASE = select(tables.leases).where(tables.leases.c.lease_id == bindparam("number"))
_OF_SERVER = select(tables.leases).where(
    tables.leases.c.hub_id == bindparam("hub_id"),
    tables.leases.c.user_name == bindparam("user"),
    tables.leases.c.server_name == bindparam("server"),
)
_LIVING_OF_SERVER = _OF_SERVER.where(tables.leases.c.state.in_(LIVE))
_LAST_OF_SERVER = _OF_SERVER.order_by(desc(tables.leases.c.lease_id)).limit(1)
_WAITERS = (
    select(
        tables.leases.c.lease_id,
        tables.leases.c.profile,
        tables.leases.c.may_wait,
        tables.leases.c.start_seconds,
    )
    .where(tables.leases.c.state == str(State.WAITING))
    .order_by(tables.leases.c.lease_id)
)


class Decoders:
    """Decoders that remember: equal texts recur in every settlement."""

    def __init__(self) -> None:
        self.profile = lru_cache(maxsize=1024)(decode_profile)
        self.inventory = lru_cache(maxsize=64)(decode_inventory)
        self.attribution = lru_cache(maxsize=64)(decode_attribution)
        self.policy = lru_cache(maxsize=4)(decode_policy)


class Reader:
    """One consistent view of the ledger."""

    def __init__(self, connection: Connection, decoders: Decoders) -> None:
        """Read through a connection that is in a transaction."""
        self._connection = connection
        self._decoders = decoders

    def policy(self) -> Policy | None:
        """Return what the hub published; None before the first hub did."""
        text = self._connection.execute(_POLICY).scalar_one()
        return None if text is None else self._decoders.policy(text)

    def hosts(self) -> tuple[HostInventory, ...]:
        """Return each host's last inventory."""
        rows = self._connection.execute(_HOSTS).all()
        return tuple(
            self._decoders.inventory(row.host_id, row.observed_at, row.inventory) for row in rows
        )

    def attributions(self) -> dict[HostId, Attribution]:
        """Return whose the processes of each host were when it was observed last."""
        rows = self._connection.execute(_ATTRIBUTIONS).all()
        return {
            HostId(row.host_id): self._decoders.attribution(
                row.host_id, row.observed_at, row.attribution
            )
            for row in rows
        }

    def cordons(self) -> dict[str, str]:
        """Return the cordoned UUIDs with the operator's notes."""
        rows = self._connection.execute(_CORDONS)
        return {row.target_uuid: row.note for row in rows}

    def strays(self) -> dict[tuple[str, str], list[Stray]]:
        """Return what runs with devices and without a lease, by host and engine."""
        found: dict[tuple[str, str], list[Stray]] = {}
        for row in self._connection.execute(_STRAYS).all():
            devices = None if row.devices is None else tuple(map(DeviceUUID, row.devices))
            stray = Stray(run_id=row.run_id, name=row.name, devices=devices)
            found.setdefault((row.host_id, row.engine), []).append(stray)
        return found

    def foreign(self) -> dict[tuple[str, str], str]:
        """Return who uses a device without a lease, by host and UUID; ``*`` is all of a host."""
        used: dict[tuple[str, str], str] = {}
        for (host_id, _engine), strays in self.strays().items():
            for stray in strays:
                for uuid in stray.devices if stray.devices is not None else ("*",):
                    used[host_id, uuid] = stray.name
        return used

    def engine_states(self) -> list[EngineState]:
        """Return how each engine answered its host's agent last."""
        return [EngineState(**row._asdict()) for row in self._connection.execute(_ENGINES).all()]

    def hub_ids(self) -> set[str]:
        """Return the ids of the hubs whose books these are."""
        return {hub_id for hub_id in self._connection.execute(_HUB_IDS).scalars() if hub_id}

    def leases_by_fence(self, fences: Iterable[int]) -> dict[int, Lease]:
        """Return the leases of these grants, living or ended."""
        table = tables.leases
        found = self._leases(select(table).where(table.c.fence.in_(list(fences))))
        return {lease.fence: lease for lease in found if lease.fence is not None}

    def holds(self, lease_ids: Iterable[int] | None = None) -> list[Hold]:
        """Return all living holds, or those of some leases."""
        run = self._connection.execute
        rows = run(_HOLDS) if lease_ids is None else run(_HOLDS_OF, {"numbers": list(lease_ids)})
        return [decode_hold(row) for row in rows.all()]

    def holds_sum(self) -> tuple[int, int]:
        """Return how many living holds there are, and the sum of their leases' numbers."""
        count, total = self._connection.execute(_HOLDS_SUM).one()
        return int(count), int(total)

    def last_record(self) -> int:
        """Return the number of the newest audit record; 0 when there is none."""
        return int(self._connection.execute(_LAST_RECORD).scalar_one())

    def leases_in_records(self, after: int, *, limit: int) -> set[int]:
        """Return the leases that got or gave up slices in the audit records after this one."""
        rows = self._connection.execute(_LEASES_IN_RECORDS, {"record": after, "most": limit})
        return set(rows.scalars())

    def occupied_devices(self) -> dict[str, str]:
        """Return the mode that the database keeps each held device in."""
        rows = self._connection.execute(select(tables.occupied_devices))
        return {row.device_uuid: row.mode for row in rows}

    def view(self, now: datetime) -> Pool:
        """Join policy, inventories, cordons and holds."""
        policy = self.policy() or Policy()
        return Pool(
            policy, self.hosts(), self.cordons(), self.holds(), now=now, foreign=self.foreign()
        )

    def lease(self, lease_id: int) -> Lease | None:
        """Return one lease by its number."""
        row = self._connection.execute(_LEASE, {"number": lease_id}).one_or_none()
        return None if row is None else decode_lease(row, self._decoders.profile(row.profile))

    def living(self, *, states: frozenset[State] = LIVE) -> list[Lease]:
        """Return the leases in these states, oldest first."""
        table = tables.leases
        query = select(table).where(table.c.state.in_(states)).order_by(table.c.lease_id)
        return self._leases(query)

    def waiters(self) -> list[Waiter]:
        """Return who waits, first come first, in what a settlement needs only."""
        return [
            Waiter(
                lease_id=number,
                profile=self._decoders.profile(text),
                may_wait=may_wait,
                start_seconds=start_seconds,
            )
            for number, text, may_wait, start_seconds in self._connection.execute(_WAITERS).all()
        ]

    def holding(self) -> list[Lease]:
        """Return the leases that hold slices, oldest first."""
        return self.living(states=HOLDING)

    def living_of_server(self, key: ServerKey) -> Lease | None:
        """Return the one living lease of a server."""
        return self._lease_of_server(_LIVING_OF_SERVER, key)

    def last_of_server(self, key: ServerKey) -> Lease | None:
        """Return a server's newest lease, living or ended."""
        return self._lease_of_server(_LAST_OF_SERVER, key)

    def leases(
        self,
        *,
        hub_id: str | None = None,
        user: str | None = None,
        states: frozenset[State] = frozenset(),
        before: int | None = None,
        limit: int,
    ) -> list[Lease]:
        """Return one page of leases, newest first.

        Args:
            hub_id: of this hub only.
            user: of this person only.
            states: in these states only; empty means in any.
            before: with a lower number only: the last one of the page before.
            limit: how many at most.
        """
        table = tables.leases
        query = select(table).order_by(desc(table.c.lease_id)).limit(limit)
        if hub_id is not None:
            query = query.where(table.c.hub_id == hub_id)
        if user is not None:
            query = query.where(table.c.user_name == user)
        if states:
            query = query.where(table.c.state.in_(states))
        if before is not None:
            query = query.where(table.c.lease_id < before)
        return self._leases(query)

    def of_user(self, hub_id: str, user: str, *, limit: int = 50) -> list[Lease]:
        """Return a person's leases, newest first."""
        return self.leases(hub_id=hub_id, user=user, limit=limit)

    def recent(self, *, limit: int = 100) -> list[Lease]:
        """Return everybody's leases, newest first."""
        return self.leases(limit=limit)

    def audit(self, lease_id: int | None = None, *, limit: int = 1000) -> list[dict[str, Any]]:
        """Return audit records, oldest first, of one lease or of all."""
        table = tables.audit
        query = select(table).order_by(table.c.audit_id).limit(limit)
        if lease_id is not None:
            query = query.where(table.c.lease_id == lease_id)
        records = []
        for row in self._connection.execute(query):
            record = dict(row._mapping)
            record["reason"] = decode_reason(row.reason)
            records.append(record)
        return records

    def _lease_of_server(self, query: Select[Any], key: ServerKey) -> Lease | None:
        values = {"hub_id": key.hub_id, "user": key.user, "server": key.server}
        row = self._connection.execute(query, values).one_or_none()
        return None if row is None else decode_lease(row, self._decoders.profile(row.profile))

    def _leases(self, query: Select[Any]) -> list[Lease]:
        rows: Sequence[Row[Any]] = self._connection.execute(query).all()
        return [decode_lease(row, self._decoders.profile(row.profile)) for row in rows]
