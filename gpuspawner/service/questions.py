"""What the service asks the ledger, each in one consistent view. Runs in the ledger's threads."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gpuspawner.domain.devices import HostInventory
from gpuspawner.domain.leases import Lease, ServerKey, State
from gpuspawner.domain.picture import DevicePicture, Viewer, draw
from gpuspawner.domain.policy import Policy
from gpuspawner.domain.pool import Pool
from gpuspawner.ledger.reader import Reader

LAST_ENDINGS: Final = 5


@dataclass(frozen=True, kw_only=True)
class Own:
    """A person's or one server's leases."""

    living: list[Lease]
    ended: list[Lease]


@dataclass(frozen=True, kw_only=True)
class Overview:
    """What the page and the pool's routes show."""

    own: Own
    pool: Pool
    policy: Policy | None
    hosts: tuple[HostInventory, ...]
    devices: tuple[DevicePicture, ...]


def overview(books: Reader, viewer: Viewer, now: datetime) -> Overview:
    """Read everything that a person's page shows."""
    living = books.living()
    pool = books.view(now)
    return Overview(
        own=_own(books, living, viewer),
        pool=pool,
        policy=books.policy(),
        hosts=books.hosts(),
        devices=draw(pool, living, viewer),
    )


def of_server(books: Reader, key: ServerKey) -> Own:
    """Read what one server's notebook may know: its own lease, or its own last end."""
    living = books.living_of_server(key)
    last = books.last_of_server(key)
    ended = last if last is not None and last.state is State.ENDED else None
    return Own(living=[living] if living else [], ended=[ended] if ended else [])


def history(
    books: Reader,
    hub_id: str,
    user: str | None,
    states: frozenset[State],
    before: int | None,
    limit: int,
) -> list[Lease]:
    """Read one page of leases, newest first; one more than ``limit`` if there are more.

    The newest come first, so the reading stops as soon as the page is full.
    """

    def wanted(lease: Lease) -> bool:
        return (
            lease.key.hub_id == hub_id
            and (not states or lease.state in states)
            and (before is None or lease.lease_id < before)
        )

    def newest(count: int) -> list[Lease]:
        if user is None:
            return books.recent(limit=count)
        return books.of_user(hub_id, user, limit=count)

    return _until_full(newest, wanted, limit + 1)


def _until_full(
    newest: Callable[[int], list[Lease]], wanted: Callable[[Lease], bool], limit: int
) -> list[Lease]:
    read = 4 * limit
    while True:
        leases = newest(read)
        found = [lease for lease in leases if wanted(lease)]
        if len(found) >= limit or len(leases) < read:
            return found[:limit]
        read *= 4


def _ended_at(lease: Lease) -> datetime:
    return lease.finished_at or lease.ended_at or lease.requested_at


def _own(books: Reader, living: list[Lease], viewer: Viewer) -> Own:
    recent = books.of_user(viewer.hub_id, viewer.user, limit=20)
    ended = [lease for lease in recent if lease.state is State.ENDED]
    ended.sort(key=_ended_at, reverse=True)
    return Own(
        living=[lease for lease in living if viewer.owns(lease.key)],
        ended=ended[:LAST_ENDINGS],
    )
