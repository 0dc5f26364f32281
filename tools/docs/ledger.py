"""The page of the ledger's tables: columns from the schema, meanings from here."""

from typing import Any, Final

from sqlalchemy import CheckConstraint, Column, ForeignKeyConstraint, Table, UniqueConstraint

from gpuspawner.ledger import tables
from tools.docs.markdown import code, table

_HEAD: Final = """
# The ledger

SQLite (`sqlite:///FILE`, on a local disk, the default) or PostgreSQL (`postgresql://...`, with the
extra `gpuspawner[postgresql]`). Hub, service, agent and command line open the same ledger; the
first one to open it makes or upgrades the tables, the others wait. A ledger that a newer version
has written is not opened.

The tables are internal: read them for reports, and write them through the command line only. All
times are UTC. A SQLite ledger is made readable by its owner only, since it names people. Beside it
lie `FILE-wal` and `FILE-shm`, which belong to it while it is open, and `FILE-next` and `FILE-turn`,
by which writers take turns. A SQLite ledger is copied to `FILE.before-` and the new schema's name
before it is upgraded; one on a network file system is refused. See
[Back up and restore](../how-to/back-up-and-restore.md).

Why it is built like this is in [Architecture](../explanation/architecture.md).
"""
_TABLES: Final = {
    "pool": "One row: the site's policy as the hub published it, and the number of the last grant.",
    "hosts": "Each GPU host's last inventory, written by its agent every few seconds.",
    "cordons": "What operators have taken out of the pool.",
    "leases": "One row per request for a GPU, from the click to its end. A refusal is ended at "
    "once; a server without GPU makes no row.",
    "occupied_devices": "Each device of which something is held, and in which mode. The holds "
    "refer to it, so the database itself refuses a device that is whole and shared at once.",
    "holds": "One row per slice that a living lease holds; gone when the lease ends. The primary "
    "key lets a unit be held once.",
    "strays": "What runs with devices and has no lease here: never touched, its devices kept back.",
    "engines": "How each engine answered its host's agent last.",
    "audit": "One record for each request, grant, refusal, end and change, never altered.",
}
_COLUMNS: Final = {
    "pool.pool_id": "always 1",
    "pool.fence": "the number of the last grant",
    "pool.policy": "profiles, device rules and placement, as JSON",
    "pool.published_by": "the hub's id",
    "pool.published_at": "when",
    "hosts.host_id": "the host's name",
    "hosts.observed_at": "when the agent looked",
    "hosts.inventory": "devices, instances, load and trouble, as JSON",
    "hosts.attribution": "whose the processes on its devices were in the same look, as JSON",
    "cordons.target_uuid": "a device's or an instance's UUID",
    "cordons.note": "why, in the operator's words",
    "cordons.actor": "who",
    "cordons.since": "when",
    "leases.lease_id": "its number",
    "leases.hub_id": "whose server: the hub's id",
    "leases.user_name": "whose server: the user's name as the hub spells it",
    "leases.server_name": "whose server: its name, empty for the default server",
    "leases.state": "`waiting`, `granted`, `running`, `ending` or `ended`",
    "leases.profile": "the profile as it was when it was asked for, as JSON",
    "leases.image": "the image that was chosen, if one was",
    "leases.engine": "`docker` or `process`",
    "leases.may_wait": "whether it may wait when nothing is free",
    "leases.start_seconds": "how long after the grant its server may take to run",
    "leases.requested_at": "when it was asked for",
    "leases.granted_at": "when it got its slices",
    "leases.running_at": "when its server started, by the engine's clock",
    "leases.start_deadline": "when the agent takes the grant back if no server runs",
    "leases.detached_at": "when its start was cancelled",
    "leases.look_again_at": "until when a call at the engine may still be under way",
    "leases.last_seen_at": "when its server was last seen alive",
    "leases.finished_at": "when its server ended, as well as that is known",
    "leases.finished_source": "where that comes from: `engine`, `events` (its event log), "
    "`last-seen`, `never-ran` or `forced`",
    "leases.ended_at": "when the lease ended and its slices were free",
    "leases.fence": "the number of its grant; also a label of its container",
    "leases.run_id": "the container's id, or the process",
    "leases.engine_id": "the engine's own id, where it has one: only that engine knows of its run",
    "leases.reason": "why it ended, or is to end: code and values, as JSON",
    "leases.slices": "what it holds or held, as JSON",
    "occupied_devices.device_uuid": "the device",
    "occupied_devices.mode": "`whole`, `mig` or `time-sliced`",
    "holds.device_uuid": "the device",
    "holds.unit": "`whole`, an instance's UUID, or `share-<n>`",
    "holds.mode": "the device's mode",
    "holds.lease_id": "who holds it",
    "holds.host_id": "on which host",
    "holds.memory_mib": "how much memory it has, in MiB",
    "holds.compute_percent": "how much of the compute, if the profile says",
    "holds.instance_profile": "the driver's name of a MIG instance's size",
    "holds.model": "the device's model",
    "holds.group_name": "whose members may share the device with it",
    "strays.host_id": "the host",
    "strays.engine": "`docker` or `process`",
    "strays.run_id": "the container's id, or the process",
    "strays.name": "the container's name",
    "strays.devices": "UUIDs of the devices that it has, as JSON; empty: all of the host",
    "strays.since": "when it was first seen",
    "engines.host_id": "the host",
    "engines.engine": "`docker` or `process`",
    "engines.answered_at": "when it answered the host's agent last",
    "engines.silent_since": "since when it does not answer; empty: it answers",
    "engines.detail": "what it said, or what the attempt ended with",
    "audit.audit_id": "its number",
    "audit.at": "when",
    "audit.actor": "`user:<name>`, `admin:<account>`, `hub`, `agent:<host>`, `cli`",
    "audit.action": "`request`, `grant`, `refuse`, `bind`, `run`, `detach`, `ending`, `end`, "
    "`cordon`, `uncordon`, `publish`, `restore`, `stray`, `stray-gone`",
    "audit.lease_id": "about which lease",
    "audit.target": "about what else: a UUID, a container, a hub",
    "audit.reason": "why: code and values, as JSON",
    "audit.detail": "more, as JSON",
}

_TYPES: Final = {
    "UTCDateTime": "time",
    "BigInteger": "whole number",
    "Integer": "whole number",
    "String": "text",
    "Text": "text",
    "Boolean": "true or false",
}


def page() -> str:
    """Return the page."""
    parts = [_HEAD.strip()]
    for each in tables.metadata.tables.values():
        rows = [
            [code(column.name), _type(column), _COLUMNS[f"{each.name}.{column.name}"]]
            for column in each.columns
        ]
        parts += [
            f"## `{each.name}`",
            _TABLES[each.name],
            table(["column", "type", "meaning"], rows),
        ]
        rules = _rules(each)
        if rules:
            parts.append("The database holds:\n\n" + "\n".join(f"- {rule}" for rule in rules))
    return "\n\n".join(parts)


def _type(column: Column[Any]) -> str:
    kind = column.type.__class__.__name__.removesuffix("_")
    name = _TYPES.get(kind, kind)
    if column.primary_key:
        return f"{name}, key"
    return name if not column.nullable else f"{name} or null"


def _rules(each: Table) -> list[str]:
    rules = []
    for constraint in sorted(each.constraints, key=lambda item: str(item.name)):
        if isinstance(constraint, CheckConstraint):
            rules.append(code(" ".join(str(constraint.sqltext).split())))
        elif isinstance(constraint, ForeignKeyConstraint):
            own = ", ".join(column.name for column in constraint.columns)
            there = ", ".join(item.target_fullname for item in constraint.elements)
            rules.append(f"{code(own)} refers to {code(there)}")
        elif isinstance(constraint, UniqueConstraint):
            rules.append(f"unique: {code(', '.join(c.name for c in constraint.columns))}")
    for index in sorted(each.indexes, key=lambda item: str(item.name)):
        if index.unique:
            where = index.dialect_options["sqlite"].get("where")
            names = ", ".join(column.name for column in index.columns)
            condition = "" if where is None else f" where {code(where)}"
            rules.append(f"unique: {code(names)}{condition}")
    return rules
