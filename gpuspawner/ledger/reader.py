"""Questions to the ledger, inside one transaction."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, desc, select

from gpuspawner.domain.devices import HostInventory
from gpuspawner.domain.leases import HOLDING, LIVE, Lease, ServerKey, State
from gpuspawner.domain.policy import Policy
from gpuspawner.domain.pool import Pool
from gpuspawner.domain.settlement import Waiter
from gpuspawner.domain.slices import Hold, HoldKey
from gpuspawner.ledger import tables
from gpuspawner.ledger.encoding import (
    decode_hold,
    decode_inventory,
    decode_lease,
    decode_policy,
    decode_profile,
    decode_reason,
)

# Made once: making a statement takes longer than running it.
_POLICY = select(tables.pool.c.policy)
_HOSTS = select(tables.hosts).order_by(tables.hosts.c.host_id)
_CORDONS = select(tables.cordons.c.target_uuid, tables.cordons.c.note)
_HOLD_KEYS = select(tables.holds.c.device_uuid, tables.holds.c.unit, tables.holds.c.lease_id)
_LEASE = select(tables.leases).where(tables.leases.c.lease_id == bindparam("number"))
_WAITERS = (
    select(tables.leases.c.lease_id, tables.leases.c.profile, tables.leases.c.may_wait)
    .where(tables.leases.c.state == str(State.WAITING))
    .order_by(tables.leases.c.lease_id)
)


class Decoders:
    """Decoders that remember: equal texts recur in every settlement."""

    def __init__(self) -> None:
        self.profile = lru_cache(maxsize=1024)(decode_profile)
        self.inventory = lru_cache(maxsize=64)(decode_inventory)
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

    def cordons(self) -> dict[str, str]:
        """Return the cordoned UUIDs with the operator's notes."""
        rows = self._connection.execute(_CORDONS)
        return {row.target_uuid: row.note for row in rows}

    def holds(self, lease_ids: Iterable[int] | None = None) -> list[Hold]:
        """Return all living holds, or those of some leases."""
        query = select(tables.holds)
        if lease_ids is not None:
            query = query.where(tables.holds.c.lease_id.in_(lease_ids))
        return [decode_hold(row) for row in self._connection.execute(query).all()]

    def hold_keys(self) -> set[HoldKey]:
        """Return what tells the living holds apart, and no more of them."""
        rows = self._connection.execute(_HOLD_KEYS).all()
        return {(uuid, unit, number) for uuid, unit, number in rows}

    def occupied_devices(self) -> dict[str, str]:
        """Return the mode that the database keeps each held device in."""
        rows = self._connection.execute(select(tables.occupied_devices))
        return {row.device_uuid: row.mode for row in rows}

    def view(self, now: datetime) -> Pool:
        """Join policy, inventories, cordons and holds."""
        policy = self.policy() or Policy()
        return Pool(policy, self.hosts(), self.cordons(), self.holds(), now=now)

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
            Waiter(lease_id=number, profile=self._decoders.profile(text), may_wait=may_wait)
            for number, text, may_wait in self._connection.execute(_WAITERS).all()
        ]

    def holding(self) -> list[Lease]:
        """Return the leases that hold slices, oldest first."""
        return self.living(states=HOLDING)

    def living_of_server(self, key: ServerKey) -> Lease | None:
        """Return the one living lease of a server."""
        table = tables.leases
        found = self._leases(_of_server(key).where(table.c.state.in_(LIVE)))
        return found[0] if found else None

    def last_of_server(self, key: ServerKey) -> Lease | None:
        """Return a server's newest lease, living or ended."""
        query = _of_server(key).order_by(desc(tables.leases.c.lease_id)).limit(1)
        found = self._leases(query)
        return found[0] if found else None

    def of_user(self, hub_id: str, user: str, *, limit: int = 50) -> list[Lease]:
        """Return a person's leases, newest first."""
        table = tables.leases
        query = (
            select(table)
            .where(table.c.hub_id == hub_id, table.c.user_name == user)
            .order_by(desc(table.c.lease_id))
            .limit(limit)
        )
        return self._leases(query)

    def recent(self, *, limit: int = 100) -> list[Lease]:
        """Return everybody's leases, newest first."""
        table = tables.leases
        return self._leases(select(table).order_by(desc(table.c.lease_id)).limit(limit))

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

    def _leases(self, query: Select[Any]) -> list[Lease]:
        rows: Sequence[Row[Any]] = self._connection.execute(query).all()
        return [decode_lease(row, self._decoders.profile(row.profile)) for row in rows]


def _of_server(key: ServerKey) -> Select[Any]:
    table = tables.leases
    return select(table).where(
        table.c.hub_id == key.hub_id,
        table.c.user_name == key.user,
        table.c.server_name == key.server,
    )
