"""What the service asks the ledger, each in one consistent view. Runs in the ledger's threads."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gpuspawner.domain.devices import HostId, HostInventory
from gpuspawner.domain.knowledge import Knowledge
from gpuspawner.domain.leases import Lease, ServerKey, State
from gpuspawner.domain.picture import DevicePicture, Viewer, draw
from gpuspawner.domain.policy import Policy
from gpuspawner.domain.pool import Pool
from gpuspawner.domain.reconciliation import EngineState
from gpuspawner.domain.uses import Attribution, LeaseUse, uses_of
from gpuspawner.ledger.reader import Reader

LAST_ENDINGS: Final = 5


@dataclass(frozen=True, kw_only=True)
class Own:
    """A person's or one server's leases, whether it is known what runs of them, and their use."""

    living: list[Lease]
    ended: list[Lease]
    knowledge: Knowledge
    uses: Mapping[int, LeaseUse]  # of those of which it is known


@dataclass(frozen=True, kw_only=True)
class Overview:
    """What the page and the pool's routes show. ``silent``: engines whose word is missed."""

    own: Own
    pool: Pool
    policy: Policy | None
    hosts: tuple[HostInventory, ...]
    silent: list[EngineState]
    devices: tuple[DevicePicture, ...]
    attributions: Mapping[HostId, Attribution]


def overview(books: Reader, viewer: Viewer, now: datetime) -> Overview:
    """Read everything that a person's page shows."""
    living = books.living()
    pool = books.view(now)
    hosts, engines = books.hosts(), books.engine_states()
    knowledge = Knowledge(engines, hosts, now)
    attributions = books.attributions()
    return Overview(
        own=_own(books, living, viewer, knowledge, uses_of(living, attributions, now)),
        pool=pool,
        policy=books.policy(),
        hosts=hosts,
        silent=[state for state in engines if knowledge.is_missed(state, living)],
        devices=draw(pool, living, viewer),
        attributions=attributions,
    )


def of_server(books: Reader, key: ServerKey, now: datetime) -> Own:
    """Read what one server's notebook may know: its own lease, or its own last end."""
    living = books.living_of_server(key)
    last = books.last_of_server(key)
    ended = last if last is not None and last.state is State.ENDED else None
    return Own(
        living=[living] if living else [],
        ended=[ended] if ended else [],
        knowledge=Knowledge(books.engine_states(), books.hosts(), now),
        uses=uses_of([living] if living else [], books.attributions(), now),
    )


def history(
    books: Reader,
    hub_id: str,
    user: str | None,
    states: frozenset[State],
    before: int | None,
    limit: int,
    now: datetime,
) -> tuple[list[Lease], Knowledge, Mapping[int, LeaseUse]]:
    """Read one page of leases, newest first; one more than ``limit`` if there are more."""
    found = books.leases(hub_id=hub_id, user=user, states=states, before=before, limit=limit + 1)
    knowledge = Knowledge(books.engine_states(), books.hosts(), now)
    return found, knowledge, uses_of(found, books.attributions(), now)


def _ended_at(lease: Lease) -> datetime:
    return lease.finished_at or lease.ended_at or lease.requested_at


def _own(
    books: Reader,
    living: list[Lease],
    viewer: Viewer,
    knowledge: Knowledge,
    uses: Mapping[int, LeaseUse],
) -> Own:
    ended = books.leases(
        hub_id=viewer.hub_id, user=viewer.user, states=frozenset({State.ENDED}), limit=20
    )
    ended.sort(key=_ended_at, reverse=True)
    return Own(
        living=[lease for lease in living if viewer.owns(lease.key)],
        ended=ended[:LAST_ENDINGS],
        knowledge=knowledge,
        uses=uses,
    )
