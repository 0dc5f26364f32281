"""Changes to the ledger, inside one write transaction. What they mean is decided elsewhere."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Connection, bindparam, case, delete, insert, select, update

from gpuspawner.domain.devices import HostInventory
from gpuspawner.domain.leases import HOLDING, Claim, State, check_transition
from gpuspawner.domain.policy import Policy
from gpuspawner.domain.pool import Pool
from gpuspawner.domain.reasons import Reason
from gpuspawner.domain.reconciliation import EngineState, Stray
from gpuspawner.domain.slices import Hold, slice_to_dict
from gpuspawner.domain.uses import Attribution
from gpuspawner.ledger import tables
from gpuspawner.ledger.encoding import (
    encode_attribution,
    encode_inventory,
    encode_policy,
    encode_profile,
    encode_reason,
)
from gpuspawner.ledger.reader import Decoders, Reader
from gpuspawner.ledger.view import LastView

# Made once: making a statement takes longer than running it. An update sets what it is given.
_FENCE = tables.pool.c.fence
_ABOVE = bindparam("above", type_=BigInteger)
_BUMP = (
    update(tables.pool)
    .values(fence=case((_FENCE < _ABOVE, _ABOVE), else_=_FENCE) + bindparam("more"))
    .returning(_FENCE)
)
_NOT_BELOW = update(tables.pool).values(fence=case((_FENCE < _ABOVE, _ABOVE), else_=_FENCE))
_CHANGE_LEASE = update(tables.leases).where(tables.leases.c.lease_id == bindparam("number"))
_GRANT = (
    update(tables.leases)
    .where(tables.leases.c.lease_id == bindparam("number"))
    .where(tables.leases.c.state == str(State.WAITING))
    .values(
        state=str(State.GRANTED),
        **{name: bindparam(name) for name in ("granted_at", "fence", "start_deadline", "slices")},
    )
)
_ADD_LEASE = insert(tables.leases)
_ADD_HOLDS = insert(tables.holds)
_OCCUPY = insert(tables.occupied_devices)
_ADD_AUDIT = insert(tables.audit)
_DELETE_HOLDS = (
    delete(tables.holds)
    .where(tables.holds.c.lease_id.in_(bindparam("numbers", expanding=True)))
    .returning(tables.holds.c.device_uuid)
)
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
        self._records: list[dict[str, Any]] = []
        self._given_back: list[int] = []

    def view(self, now: datetime) -> Pool:
        """Join policy, inventories, cordons and holds; what is granted may be entered into it."""
        return self._last.now(self, now)

    def flush(self) -> None:
        """Write what is kept back: audit records go together, in the order of their making."""
        self._give_back()
        if self._records:
            records, self._records = self._records, []
            self._connection.execute(_ADD_AUDIT, records)

    def last_record(self) -> int:
        """Return the number of the newest audit record, this transaction's included."""
        self.flush()
        return super().last_record()

    def audit(self, lease_id: int | None = None, *, limit: int = 1000) -> list[dict[str, Any]]:
        """Return audit records, this transaction's included."""
        self.flush()
        return super().audit(lease_id, limit=limit)

    def holds(self, lease_ids: Iterable[int] | None = None) -> list[Hold]:
        """Return all living holds, or those of some leases, as this transaction leaves them."""
        self._give_back()
        return super().holds(lease_ids)

    def holds_sum(self) -> tuple[int, int]:
        """Return how many holds there are, and the sum of their leases' numbers."""
        self._give_back()
        return super().holds_sum()

    def occupied_devices(self) -> dict[str, str]:
        """Return what guards each device that is held."""
        self._give_back()
        return super().occupied_devices()

    def save_policy(self, policy: Policy, hub_id: str, now: datetime) -> bool:
        """Publish a policy; False when the ledger has an equal one already."""
        text = encode_policy(policy)
        if self._connection.execute(select(tables.pool.c.policy)).scalar_one() == text:
            return False
        self._connection.execute(
            update(tables.pool).values(policy=text, published_by=hub_id, published_at=now)
        )
        return True

    def save_host(self, inventory: HostInventory, attribution: Attribution | None = None) -> None:
        """Replace what is known of a host, and whose the processes on it are."""
        values = {
            "observed_at": inventory.observed_at,
            "inventory": encode_inventory(inventory),
            "attribution": None if attribution is None else encode_attribution(attribution),
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
            _ADD_LEASE,
            {
                "hub_id": claim.key.hub_id,
                "user_name": claim.key.user,
                "server_name": claim.key.server,
                "state": State.WAITING,
                "profile": encode_profile(claim.profile),
                "image": claim.image,
                "engine": claim.engine,
                "may_wait": claim.may_wait,
                "start_seconds": claim.start_seconds,
                "requested_at": now,
            },
        )
        assert result.inserted_primary_key is not None
        return int(result.inserted_primary_key[0])

    def readopt_lease(self, values: Mapping[str, Any]) -> int:
        """Enter the lease of a grant that these books lack; return its number."""
        result = self._connection.execute(_ADD_LEASE, values)
        self._connection.execute(_NOT_BELOW, {"above": values["fence"]})
        assert result.inserted_primary_key is not None
        return int(result.inserted_primary_key[0])

    def save_strays(
        self, host_id: str, engine: str, strays: Iterable[Stray], now: datetime
    ) -> tuple[list[Stray], list[Stray]]:
        """Replace what is known of a host's strays; return which came and which went."""
        table = tables.strays
        before = {each.run_id: each for each in self.strays().get((host_id, engine), ())}
        after = {each.run_id: each for each in strays}
        went = [each for number, each in before.items() if after.get(number) != each]
        came = [each for number, each in after.items() if before.get(number) != each]
        of_engine = (table.c.host_id == host_id) & (table.c.engine == engine)
        if went:
            numbers = [each.run_id for each in went]
            self._connection.execute(delete(table).where(of_engine, table.c.run_id.in_(numbers)))
        for each in came:
            devices = None if each.devices is None else list(each.devices)
            self._connection.execute(
                insert(table).values(
                    host_id=host_id,
                    engine=engine,
                    run_id=each.run_id,
                    name=each.name,
                    devices=devices,
                    since=now,
                )
            )
        return came, went

    def save_engine_state(self, state: EngineState) -> None:
        """Record how an engine answered."""
        table = tables.engines
        values: dict[str, Any] = {"silent_since": state.silent_since, "detail": state.detail}
        if state.answered_at is not None:  # of one that is silent, when it answered last is kept
            values["answered_at"] = state.answered_at
        changed = self._connection.execute(
            update(table)
            .where(table.c.host_id == state.host_id, table.c.engine == state.engine)
            .values(values)
        )
        if changed.rowcount == 0:
            self._connection.execute(
                insert(table).values(host_id=state.host_id, engine=state.engine, **values)
            )

    def next_fence(self, *, above: int = 0) -> int:
        """Return a number higher than every one before, and than ``above``."""
        return self.next_fences(1, above=above)[0]

    def next_fences(self, count: int, *, above: int = 0) -> range:
        """Return so many numbers, each higher than every one before, and than ``above``."""
        values = {"more": count, "above": above}
        last = int(self._connection.execute(_BUMP, values).scalar_one())
        return range(last - count + 1, last + 1)

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

    def grant(self, grants: Sequence[Mapping[str, Any]], holds: Sequence[Hold]) -> None:
        """Make waiting leases granted ones, and take their slices.

        The database refuses a unit or a mode that is taken.

        Args:
            grants: for each lease its ``number`` and the columns of a grant.
            holds: what they hold.
        """
        self._connection.execute(_GRANT, grants)
        self.add_holds(holds)

    def add_holds(self, holds: Sequence[Hold]) -> None:
        """Take slices for a lease. The database refuses a unit or a mode that is taken."""
        self._give_back()
        occupations = self._new_occupations(holds)
        if occupations:
            self._connection.execute(_OCCUPY, occupations)
        rows = [
            {**slice_to_dict(hold.slice), "lease_id": hold.lease_id, "group_name": hold.group}
            for hold in holds
        ]
        self._connection.execute(_ADD_HOLDS, rows)

    def delete_holds(self, lease_id: int) -> None:
        """Give a lease's slices back; those of several leases go together."""
        self._given_back.append(lease_id)

    def _give_back(self) -> None:
        if not self._given_back:
            return
        numbers, self._given_back = self._given_back, []
        run = self._connection.execute
        devices = set(run(_DELETE_HOLDS, {"numbers": numbers}).scalars())
        if devices:
            run(_DELETE_EMPTY, {"uuids": list(devices)})

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
        self._records.append(
            {
                "at": at,
                "actor": actor,
                "action": action,
                "lease_id": lease_id,
                "target": target,
                "reason": encode_reason(reason),
                "detail": None if detail is None else dict(detail),
            }
        )

    def _new_occupations(self, holds: Sequence[Hold]) -> list[dict[str, str]]:
        wanted = {hold.slice.device_uuid: str(hold.slice.mode) for hold in holds}
        present = set(self._connection.execute(_OCCUPIED, {"uuids": list(wanted)}).scalars())
        return [
            {"device_uuid": uuid, "mode": mode}
            for uuid, mode in wanted.items()
            if uuid not in present
        ]
