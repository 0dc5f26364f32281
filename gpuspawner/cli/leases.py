"""``gpuspawner leases``: who holds what, and how the last leases ended."""

import argparse
import json
from typing import Any

from gpuspawner.catalogue import Catalogue
from gpuspawner.cli.common import add_ledger, open_broker, table
from gpuspawner.domain.leases import Lease


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
        found = books.recent(limit=100_000) if arguments.all else books.living()[::-1]
    wanted = [lease for lease in found if arguments.user in (None, lease.key.user)]
    wanted = wanted[: arguments.limit]
    if arguments.json:
        print(json.dumps([lease_to_dict(lease) for lease in wanted], indent=2))
        return 0
    if not wanted:
        print("No leases." if arguments.all else "No living leases; --all shows ended ones.")
        return 0
    words = Catalogue("en")
    rows = [
        [
            str(lease.lease_id),
            lease.key.user + (f"/{lease.key.server}" if lease.key.server else ""),
            lease.profile.name,
            str(lease.state),
            f"{lease.requested_at:%Y-%m-%d %H:%M:%S}",
            ", ".join(item.slice_id for item in lease.slices) or "-",
            words.short(lease.reason) if lease.reason else "",
        ]
        for lease in wanted
    ]
    head = ["LEASE", "SERVER", "PROFILE", "STATE", "SINCE (UTC)", "SLICES", "REASON"]
    print(table(head, rows))
    return 0


def lease_to_dict(lease: Lease) -> dict[str, Any]:
    """Spell a lease for scripts; unknown is null."""
    return {
        "lease_id": lease.lease_id,
        "hub_id": lease.key.hub_id,
        "user": lease.key.user,
        "server": lease.key.server,
        "profile": lease.profile.name,
        "state": str(lease.state),
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


def _time(when: Any) -> str | None:
    return when.isoformat() if when else None
