"""``gpuspawner leases``: who holds what, and how the last leases ended."""

import argparse
import json
from datetime import datetime
from typing import Any

from gpuspawner.catalogue import Catalogue
from gpuspawner.cli.common import (
    add_ledger,
    now,
    open_broker,
    plain,
    server_name,
    spell_unknown,
    table,
)
from gpuspawner.domain.knowledge import Knowledge, Unknown, Why
from gpuspawner.domain.leases import LIVE, Lease, State


def add_verbs(verbs: Any) -> None:
    """Add the verb."""
    verb = verbs.add_parser("leases", help="list leases, the newest first")
    verb.add_argument("--all", action="store_true", help="also those that have ended")
    verb.add_argument("--user", help="only this person's")
    verb.add_argument("--limit", type=int, default=100, help="at most so many (default 100)")
    verb.add_argument("--json", action="store_true", help="for scripts")
    add_ledger(verb)
    verb.set_defaults(run=_leases)


def _leases(arguments: argparse.Namespace) -> int:
    with open_broker(arguments) as broker, broker.ledger.read() as books:
        states = frozenset[State]() if arguments.all else LIVE
        wanted = books.leases(user=arguments.user, states=states, limit=max(arguments.limit, 0))
        knowledge = Knowledge(books.engine_states(), books.hosts(), now())
    found = [(lease, knowledge.of(lease)) for lease in wanted]
    if arguments.json:
        print(json.dumps([lease_to_dict(lease, unknown) for lease, unknown in found], indent=2))
        return 0
    if not found:
        print("No leases." if arguments.all else "No living leases; --all shows ended ones.")
        return 0
    words = Catalogue("en")
    rows = [
        [
            str(lease.lease_id),
            plain(server_name(lease.key)),
            lease.profile.name,
            _state(lease, unknown),
            f"{lease.requested_at:%Y-%m-%d %H:%M:%S}",
            ", ".join(item.slice_id for item in lease.slices) or "-",
            words.short(lease.reason) if lease.reason else "",
        ]
        for lease, unknown in found
    ]
    head = ["LEASE", "SERVER", "PROFILE", "STATE", "SINCE (UTC)", "SLICES", "REASON"]
    print(table(head, rows))
    if any(unknown and unknown.why is not Why.NOT_OBSERVED for _, unknown in found):
        print(
            "\nunknown: it is not known whether the server runs, so the lease stays held. "
            "'gpuspawner status' says why."
        )
    return 0


def _state(lease: Lease, unknown: Unknown | None) -> str:
    if unknown is None:
        return str(lease.state)
    said = "not observed" if unknown.why is Why.NOT_OBSERVED else "unknown"
    return f"{lease.state}, {said}"


def lease_to_dict(lease: Lease, unknown: Unknown | None) -> dict[str, Any]:
    """Spell a lease for scripts, with what is not known of its server; unknown is null."""
    return {
        "lease_id": lease.lease_id,
        "hub_id": lease.key.hub_id,
        "user": lease.key.user,
        "server": lease.key.server,
        "profile": lease.profile.name,
        "state": str(lease.state),
        **spell_unknown(unknown),
        "slices": [item.slice_id for item in lease.slices],
        "requested_at": _time(lease.requested_at),
        "granted_at": _time(lease.granted_at),
        "running_at": _time(lease.running_at),
        "ended_at": _time(lease.ended_at),
        "finished_at": _time(lease.finished_at),
        "finished_source": str(lease.finished_source) if lease.finished_source else None,
        "reason": None
        if lease.reason is None
        else {"code": str(lease.reason.code), "values": dict(lease.reason.values)},
    }


def _time(when: datetime | None) -> str | None:
    return when.isoformat() if when else None
