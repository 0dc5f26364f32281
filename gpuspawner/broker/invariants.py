"""The promises as a checker: what must be true of the books at every moment.

Runs after every test that touches state; reads only.
"""

from collections import defaultdict
from collections.abc import Sequence

from gpuspawner.domain.devices import Mode
from gpuspawner.domain.leases import HOLDING, Lease, State
from gpuspawner.domain.slices import Hold
from gpuspawner.ledger.store import Ledger


def broken_promises(ledger: Ledger) -> list[str]:
    """Return a sentence for each promise that the books break; empty when all hold."""
    with ledger.read() as books:
        living = books.living()
        everything = books.recent(limit=100_000)
        audit = books.audit(limit=1_000_000)
        holds = books.holds()
        occupied = books.occupied_devices()
        capacities: dict[str, int | None] = {
            device.uuid: device.memory_mib for host in books.hosts() for device in host.devices
        }
    return [
        *_held_once(holds),
        *_sums(holds, capacities),
        *_occupied(holds, occupied),
        *_leases_and_holds(living, holds),
        *_one_living_lease_per_server(living),
        *_ended_on_evidence(everything),
        *_audited(everything, audit),
    ]


def _held_once(holds: Sequence[Hold]) -> list[str]:
    """P1: a slice is held once, and a device has one mode and, when shared, one group."""
    broken = []
    by_device: dict[str, list[Hold]] = defaultdict(list)
    for hold in holds:
        by_device[hold.slice.device_uuid].append(hold)
    for uuid, group in by_device.items():
        units = [hold.slice.unit for hold in group]
        if len(set(units)) != len(units):
            broken.append(f"P1: device {uuid} has a unit held twice: {sorted(units)}")
        if len({hold.slice.mode for hold in group}) > 1:
            broken.append(f"P1: device {uuid} is held in more than one mode")
        shared = [hold for hold in group if hold.slice.mode.is_share]
        if len({hold.group for hold in shared}) > 1:
            broken.append(f"P1: device {uuid} is shared by more than one group")
        if any(hold.slice.mode is Mode.WHOLE for hold in group) and len(group) > 1:
            broken.append(f"P1: device {uuid} is held whole and by somebody else too")
    return broken


def _sums(holds: Sequence[Hold], capacities: dict[str, int | None]) -> list[str]:
    """P1: shares of a device never add up to more memory than it has."""
    promised: dict[str, int] = defaultdict(int)
    for hold in holds:
        if hold.slice.mode.is_share:
            promised[hold.slice.device_uuid] += hold.slice.memory_mib or 0
    return [
        f"P1: shares of device {uuid} add up to {total} MiB of {capacity} MiB"
        for uuid, total in promised.items()
        if (capacity := capacities.get(uuid)) is not None and total > capacity
    ]


def _occupied(holds: Sequence[Hold], occupied: dict[str, str]) -> list[str]:
    """P1: the mode that the database guards a device with is the one that it is held in."""
    held = {str(hold.slice.device_uuid): str(hold.slice.mode) for hold in holds}
    return [
        f"P1: device {uuid} is guarded as {occupied.get(uuid)} and held as {held.get(uuid)}"
        for uuid in sorted({*held, *occupied})
        if held.get(uuid) != occupied.get(uuid)
    ]


def _leases_and_holds(living: Sequence[Lease], holds: Sequence[Hold]) -> list[str]:
    """P1, P3: who holds has a lease that says so, and the other way round."""
    held: dict[int, set[str]] = defaultdict(set)
    for hold in holds:
        held[hold.lease_id].add(hold.slice.slice_id)
    broken = []
    for lease in living:
        recorded = {item.slice_id for item in lease.slices} if lease.state in HOLDING else set()
        if held.pop(lease.lease_id, set()) != recorded:
            broken.append(f"P3: lease {lease.lease_id} ({lease.state}) and its holds differ")
    broken.extend(
        f"P3: lease {lease_id} is not living and holds {held[lease_id]}" for lease_id in held
    )
    return broken


def _one_living_lease_per_server(living: Sequence[Lease]) -> list[str]:
    keys = [lease.key for lease in living]
    return [f"P1: server {key} has two living leases" for key in set(keys) if keys.count(key) > 1]


def _ended_on_evidence(leases: Sequence[Lease]) -> list[str]:
    """P2, P6: what held slices ended on evidence, and every end has a reason."""
    broken = []
    for lease in leases:
        if lease.state is State.ENDED:
            if lease.granted_at is not None and lease.finished_source is None:
                broken.append(f"P2: lease {lease.lease_id} ended without evidence")
            if lease.reason is None:
                broken.append(f"P6: lease {lease.lease_id} ended without a reason")
    return broken


def _audited(leases: Sequence[Lease], audit: Sequence[dict[str, object]]) -> list[str]:
    """P3: every grant, refusal and end has exactly one audit record, the last two with a reason."""
    counted: dict[tuple[object, object], int] = defaultdict(int)
    broken = []
    for record in audit:
        counted[record["lease_id"], record["action"]] += 1
        if record["action"] in ("refuse", "end") and record["reason"] is None:
            broken.append(f"P3: audit record {record['audit_id']} has no reason")
    for lease in leases:
        granted = int(lease.granted_at is not None)
        ended = int(lease.state is State.ENDED)
        expected = {"request": 1, "grant": granted, "end": ended * granted,
                    "refuse": ended * (1 - granted)}  # fmt: skip
        for action, count in expected.items():
            if counted[lease.lease_id, action] != count:
                broken.append(
                    f"P3: lease {lease.lease_id} ({lease.state}) has "
                    f"{counted[lease.lease_id, action]} audit records {action!r}, not {count}"
                )
    return broken
