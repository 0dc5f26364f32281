"""Short questions to the books, for assertions."""

from typing import Any

from gpuspawner.broker.broker import Broker
from gpuspawner.domain.leases import Claim, Lease, State
from gpuspawner.domain.reasons import Reason, RefusedError
from tests.builders import T0


def lease_of(broker: Broker, lease: Lease | int) -> Lease:
    """Return a lease as it is now."""
    number = lease if isinstance(lease, int) else lease.lease_id
    with broker.ledger.read() as books:
        found = books.lease(number)
    assert found is not None
    return found


def state_of(broker: Broker, lease: Lease | int) -> State:
    """Return a lease's state now."""
    return lease_of(broker, lease).state


def held(broker: Broker) -> dict[str, int]:
    """Return who holds what: the slice's id to the lease's number."""
    with broker.ledger.read() as books:
        return {hold.slice.slice_id: hold.lease_id for hold in books.holds()}


def actions(broker: Broker, lease: Lease | int | None = None) -> list[str]:
    """Return what the audit says was done, of one lease or in all."""
    return [record["action"] for record in audit(broker, lease)]


def audit(broker: Broker, lease: Lease | int | None = None) -> list[dict[str, Any]]:
    """Return audit records."""
    number = lease.lease_id if isinstance(lease, Lease) else lease
    with broker.ledger.read() as books:
        return books.audit(number, limit=1_000_000)


def refusal(broker: Broker, asked: Claim) -> Reason:
    """Ask for what must be refused, and return why."""
    try:
        lease = broker.request(asked, T0)
    except RefusedError as error:
        return error.reason
    raise AssertionError(f"{asked} was not refused but is {lease.state}")


def everything(broker: Broker) -> tuple[Any, ...]:
    """Return all of the books but the audit, to compare before and after."""
    with broker.ledger.read() as books:
        return (
            books.recent(), books.holds(), books.occupied_devices(), books.cordons(),
            books.hosts(), books.policy(),
        )  # fmt: skip
