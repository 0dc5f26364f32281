"""``gpuspawner end --force``: end a lease whose engine will never show its server's end."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, Final

from gpuspawner.catalogue import Catalogue
from gpuspawner.cli.common import (
    CommandError,
    actor,
    add_ledger,
    moment,
    now,
    open_broker,
    plain,
    server_name,
)
from gpuspawner.domain.knowledge import Knowledge, Unknown, Why
from gpuspawner.domain.leases import Lease, State
from gpuspawner.domain.reconciliation import EngineState

_USUALLY: Final = """\
a server is stopped through the hub: on its admin page, on its owner's page, or through its API. The
lease ends by itself as soon as the engine shows that the server does not run, and stays while the
engine does not answer.
--force is for a lease whose engine is gone for good, such as a host that will not come back. It
gives the slices back on your word alone. 'gpuspawner status' shows what is known."""
_RISK: Final = (
    "If it runs after all, two servers may use the same GPU until an agent sees it and stops it."
)


def add_verbs(verbs: Any) -> None:
    """Add the verb."""
    verb = verbs.add_parser(
        "end", help="end a lease by force whose engine is gone for good; servers stop at the hub"
    )
    verb.add_argument("lease", type=int, help="its number")
    verb.add_argument("--force", action="store_true", help="without any word of the engine")
    verb.add_argument("--note", default="", help="why, for its owner and the audit")
    verb.add_argument("--yes", action="store_true", help="do not ask")
    add_ledger(verb)
    verb.set_defaults(run=_end)


def _end(arguments: argparse.Namespace) -> int:
    if not arguments.force:
        raise CommandError(_USUALLY)
    note = arguments.note.strip()
    if not note:
        raise CommandError("say why with --note: its owner reads it, and the audit keeps it")
    number = arguments.lease
    with open_broker(arguments) as broker:
        at = now()
        with broker.ledger.read() as books:
            lease = books.lease(number)
            knowledge = Knowledge(books.engine_states(), books.hosts(), at)
        if lease is None:
            raise CommandError(f"there is no lease {number}; 'gpuspawner leases' lists them")
        if lease.state is State.ENDED:
            print(_ended(lease))
            return 0
        if knowledge.shows_running(lease):
            raise CommandError(_running(lease))
        if not arguments.yes and not _agreed(lease, knowledge):
            print("Nothing is changed.")
            return 1
        if not broker.force_end(number, note, actor(), now()):
            print(f"Lease {number} has ended meanwhile.")
            return 0
    print(f"Lease {number} is ended by force. {_given_back(lease)}")
    return 0


def _agreed(lease: Lease, knowledge: Knowledge) -> bool:
    """Ask on the terminal."""
    if not sys.stdin.isatty():
        raise CommandError("it asks first, and this is no terminal; --yes ends it without asking")
    print(_about(lease, knowledge))
    try:
        answer = input("End it by force? [y/N] ")
    except EOFError:
        print()
        return False
    return answer.strip().lower() in ("y", "yes")


def _about(lease: Lease, knowledge: Knowledge) -> str:
    slices = ", ".join(item.slice_id for item in lease.slices) or "none"
    server, hub = plain(server_name(lease.key)), plain(lease.key.hub_id)
    lines = [
        f"Lease {lease.lease_id} of {server}, hub {hub}: {lease.state}.",
        f"It holds: {slices}.",
    ]
    if lease.state is not State.WAITING:
        lines.append(_server(lease, knowledge.of(lease), knowledge.engines_of(lease)))
        lines.append(_RISK)
    return "\n".join(lines)


def _server(lease: Lease, unknown: Unknown | None, engines: Sequence[EngineState]) -> str:
    """Say what is known of the server."""
    seen = "It was never seen running."
    if lease.running_at is not None:
        seen = f"It was seen running last at {moment(lease.last_seen_at or lease.running_at)}."
    if unknown is None:
        return f"The engine answers; the server is starting. {seen}"
    if unknown.since is None:
        return f"No agent has ever looked whether its server runs. {seen}"
    names = ", ".join(f"{state.engine} of {state.host_id}" for state in engines)
    why = {
        Why.ENGINE_SILENT: f"the engine {names} does not answer",
        Why.AGENT_AWAY: f"the agent that watches {names} says nothing",
        Why.NOT_SHOWN: f"the engine {names} answers, and does not show it",
    }[unknown.why]
    since = moment(unknown.since)
    return f"It is not known since {since} whether its server runs: {why}. {seen}"


def _running(lease: Lease) -> str:
    run = f" ({lease.run_id[:12]})" if lease.run_id else ""
    return (
        f"the server of lease {lease.lease_id} runs, by its engine's own word: stop it through the "
        f"hub. Where that hub is gone, remove what runs{run} at the engine; the agent then ends "
        "the lease by itself"
    )


def _ended(lease: Lease) -> str:
    why = f": {Catalogue('en').short(lease.reason)}" if lease.reason else ""
    return f"Lease {lease.lease_id} has ended already{why}."


def _given_back(lease: Lease) -> str:
    if not lease.slices:
        return "It held nothing."
    return f"Given back: {', '.join(item.slice_id for item in lease.slices)}."
