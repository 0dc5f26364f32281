"""Changes to the ledger, inside one write transaction. What they mean is decided elsewhere."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from gpuspawner.domain.devices import HostInventory
from gpuspawner.domain.leases import HOLDING, Claim, State, check_transition
from gpuspawner.domain.policy import Policy
from gpuspawner.domain.pool import Pool
from gpuspawner.domain.reasons import Reason
from gpuspawner.domain.slices import Hold
from gpuspawner.ledger import tables
from gpuspawner.ledger.encoding import (
    encode_inventory,
    encode_policy,
    encode_profile,
    encode_reason,
    encode_slice,
)
from gpuspawner.ledger.reader import Decoders, Reader
from gpuspawner.ledger.view import LastView

# Made once: making a statement takes longer than running it. An update sets what it is given.
_BUMP = update(tables.pool).values(fence=tables.pool.c.fence + 1).returning(tables.pool.c.fence)
_CHANGE_LEASE = update(tables.leases).where(tables.leases.c.lease_id == bindparam("number"))
_HELD_DEVICES = (
    select(tables.holds.c.device_uuid)
    .where(tables.holds.c.lease_id == bindparam("number"))
    .distinct()
)
_DELETE_HOLDS = delete(tables.holds).where(tables.holds.c.lease_id == bindparam("number"))
_DELETE_EMPTY = delete(tables.occupied_devices).where(
    tables.occupied_devices.c.device_uuid.in_(bindparam("uuids", expanding=True)),
    tables.occupied_devices.c.device_uuid.not_in(select(tables.holds.c.device_uuid)),
)
_OCCUPIED = select(tables.occupied_devices.c.device_uuid).where(
    tables.occupied_devices.c.device_uuid.in_(bindparam("uuids", expanding=True))
)


class Writer(Reader):
    """A reader that may also write."""

    def __init__(self, connection: Connection, decoders: Decoders, last: LastView) -> None:
        """Write through a connection that is in a write transaction."""
        super().__init__(connection, decoders)
        self._last = last

    def view(self, now: datetime) -> Pool:
        """Join policy, inventories, cordons and holds; what is granted may be entered into it."""
        facts = (self.policy() or Policy(), self.hosts(), self.cordons())
        return self._last.now(self, facts, now)

    def save_policy(self, policy: Policy, hub_id: str, now: datetime) -> bool:
        """Publish a policy; False when the ledger has an equal one already."""
        text = encode_policy(policy)
        if self._connection.execute(select(tables.pool.c.policy)).scalar_one() == text:
            return False
        self._connection.execute(
            update(tables.pool).values(policy=text, published_by=hub_id, published_at=now)
        )
        return True

    def save_host(self, inventory: HostInventory) -> None:
        """Replace what is known of a host."""
        values = {
            "observed_at": inventory.observed_at,
            "inventory": encode_inventory(inventory),
        }
        table = tables.hosts
        changed = self._connection.execute(
            update(table).where(table.c.host_id == inventory.host_id).values(values)
        )
        if changed.rowcount == 0:
            self._connection.execute(insert(table).values(host_id=inventory.host_id, **values))

    def save_cordon(self, target_uuid: str, note: str, actor: str, now: datetime) -> None:
        """Mark a device or an instance as not to be handed out; a second time renews the note."""
        self.delete_cordon(target_uuid)
        self._connection.execute(
            insert(tables.cordons).values(
                target_uuid=target_uuid, note=note, actor=actor, since=now
            )
        )

    def delete_cordon(self, target_uuid: str) -> bool:
        """Take a cordon away; False when there was none."""
        table = tables.cordons
        done = self._connection.execute(delete(table).where(table.c.target_uuid == target_uuid))
        return done.rowcount > 0

    def add_lease(self, claim: Claim, now: datetime) -> int:
        """Write a claim down as a waiting lease and return its number."""
        result = self._connection.execute(
            insert(tables.leases).values(
                hub_id=claim.key.hub_id,
                user_name=claim.key.user,
                server_name=claim.key.server,
                state=State.WAITING,
                profile=encode_profile(claim.profile),
                image=claim.image,
                engine=claim.engine,
                may_wait=claim.may_wait,
                start_seconds=claim.start_seconds,
                requested_at=now,
            )
        )
        assert result.inserted_primary_key is not None
        return int(result.inserted_primary_key[0])

    def next_fence(self) -> int:
        """Return a number higher than every one before."""
        return int(self._connection.execute(_BUMP).scalar_one())

    def change_lease(
        self, lease_id: int, before: State, after: State | None = None, /, **values: Any
    ) -> None:
        """Write columns of a lease, and its next state if one is given.

        Raises:
            InvalidTransitionError: the state may not follow.
        """
        if after is not None and after is not before:
            check_transition(before, after)
            values["state"] = after
        if values:
            self._connection.execute(_CHANGE_LEASE, {"number": lease_id, **values})

    def add_holds(self, holds: Sequence[Hold]) -> None:
        """Take slices for a lease. The database refuses a unit or a mode that is taken."""
        occupations = self._new_occupations(holds)
        if occupations:
            self._connection.execute(insert(tables.occupied_devices), occupations)
        rows = [
            {**encode_slice(hold.slice), "lease_id": hold.lease_id, "group_name": hold.group}
            for hold in holds
        ]
        self._connection.execute(insert(tables.holds), rows)

    def delete_holds(self, lease_id: int) -> None:
        """Give a lease's slices back."""
        run, number = self._connection.execute, {"number": lease_id}
        devices = run(_HELD_DEVICES, number).scalars().all()
        if devices:
            run(_DELETE_HOLDS, number)
            run(_DELETE_EMPTY, {"uuids": devices})

    def seen_alive(self, lease_ids: Iterable[int], now: datetime) -> None:
        """Note that the servers of these leases were seen running."""
        table = tables.leases
        self._connection.execute(
            update(table)
            .where(table.c.lease_id.in_(list(lease_ids)), table.c.state.in_(HOLDING))
            .values(last_seen_at=now)
        )

    def add_audit(
        self,
        *,
        at: datetime,
        actor: str,
        action: str,
        lease_id: int | None = None,
        target: str | None = None,
        reason: Reason | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        """Append one record: who did what, and why."""
        self._connection.execute(
            insert(tables.audit),
            {
                "at": at,
                "actor": actor,
                "action": action,
                "lease_id": lease_id,
                "target": target,
                "reason": encode_reason(reason),
                "detail": None if detail is None else dict(detail),
            },
        )

    def _new_occupations(self, holds: Sequence[Hold]) -> list[dict[str, str]]:
        wanted = {hold.slice.device_uuid: str(hold.slice.mode) for hold in holds}
        present = set(self._connection.execute(_OCCUPIED, {"uuids": list(wanted)}).scalars())
        return [
            {"device_uuid": uuid, "mode": mode}
            for uuid, mode in wanted.items()
            if uuid not in present
        ]
