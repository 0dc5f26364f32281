"""Questions to the ledger, inside one transaction."""

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, desc, select

from gpuspawner.domain.devices import HostInventory
from gpuspawner.domain.leases import HOLDING, LIVE, Lease, ServerKey, State
from gpuspawner.domain.policy import Policy, policy_from_dict
from gpuspawner.domain.pool import Pool
from gpuspawner.domain.profiles import Profile
from gpuspawner.domain.slices import Hold
from gpuspawner.ledger import tables
from gpuspawner.ledger.encoding import decode_hold, decode_lease, decode_reason


class Reader:
    """One consistent view of the ledger."""

    def __init__(
        self,
        connection: Connection,
        decode_profile: Callable[[str], Profile],
        decode_inventory: Callable[[str, datetime, str], HostInventory],
    ) -> None:
        """Read through a connection that is in a transaction; the decoders may cache."""
        self._connection = connection
        self._decode_profile = decode_profile
        self._decode_inventory = decode_inventory

    def policy(self) -> Policy | None:
        """Return what the hub published; None before the first hub did."""
        text = self._connection.execute(select(tables.pool.c.policy)).scalar_one()
        return None if text is None else policy_from_dict(json.loads(text))

    def hosts(self) -> tuple[HostInventory, ...]:
        """Return each host's last inventory."""
        rows = self._connection.execute(select(tables.hosts).order_by(tables.hosts.c.host_id))
        return tuple(
            self._decode_inventory(row.host_id, row.observed_at, row.inventory) for row in rows
        )

    def cordons(self) -> dict[str, str]:
        """Return the cordoned UUIDs with the operator's notes."""
        rows = self._connection.execute(select(tables.cordons))
        return {row.target_uuid: row.note for row in rows}

    def holds(self) -> list[Hold]:
        """Return all living holds."""
        return [decode_hold(row) for row in self._connection.execute(select(tables.holds))]

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
        table = tables.leases
        found = self._leases(select(table).where(table.c.lease_id == lease_id))
        return found[0] if found else None

    def living(self, *, states: frozenset[State] = LIVE) -> list[Lease]:
        """Return the leases in these states, oldest first."""
        table = tables.leases
        query = select(table).where(table.c.state.in_(states)).order_by(table.c.lease_id)
        return self._leases(query)

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
        return [decode_lease(row, self._decode_profile(row.profile)) for row in rows]


def _of_server(key: ServerKey) -> Select[Any]:
    table = tables.leases
    return select(table).where(
        table.c.hub_id == key.hub_id,
        table.c.user_name == key.user,
        table.c.server_name == key.server,
    )
