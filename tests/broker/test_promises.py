"""The checker of the promises finds each promise broken. The rules are bypassed here."""

from collections.abc import Callable

import pytest
from sqlalchemy import Connection, create_engine, text

from gpuspawner.broker.broker import Broker
from gpuspawner.broker.invariants import broken_promises
from gpuspawner.ledger.store import Ledger
from tests.builders import (
    ML_SHARE,
    NEVER_RAN,
    T0,
    WANTED,
    claim,
    device,
    inventory,
    sharing_policy,
)

SPOILS: dict[str, tuple[str, list[str]]] = {
    "a unit twice": (
        "UPDATE holds SET unit = 'share-0' WHERE unit = 'share-1'",
        ["P1: device GPU-b has a unit held twice", "P3: lease 3 (granted) and its holds differ"],
    ),
    "two modes": (
        "UPDATE holds SET mode = 'mps' WHERE unit = 'share-1'",
        ["P1: device GPU-b is held in more than one mode", "P1: device GPU-b is guarded as"],
    ),
    "two groups": (
        "UPDATE holds SET group_name = 'vis202' WHERE unit = 'share-1'",
        ["P1: device GPU-b is shared by more than one group"],
    ),
    "whole and shared": (
        "UPDATE holds SET device_uuid = 'GPU-b' WHERE unit = 'whole'",
        ["P1: device GPU-b is held whole and by somebody else too", "held in more than one mode"],
    ),
    "too much memory": (
        "UPDATE holds SET memory_mib = 12289 WHERE unit = 'share-1'",
        ["P1: shares of device GPU-b add up to 16385 MiB of 16384 MiB"],
    ),
    "a hold without lease": (
        "UPDATE holds SET lease_id = 99 WHERE unit = 'whole'",
        ["P3: lease 1 (granted) and its holds differ", "P3: lease 99 is not living and holds"],
    ),
    "a lease without hold": (
        "DELETE FROM holds WHERE unit = 'whole'",
        ["P3: lease 1 (granted) and its holds differ", "guarded as whole and held as None"],
    ),
    "who waits holds": (
        "UPDATE leases SET state = 'waiting' WHERE lease_id = 1",
        ["P3: lease 1 (waiting) and its holds differ"],
    ),
    "an ended lease holds": (
        "UPDATE leases SET state = 'ended', ended_at = requested_at WHERE lease_id = 1",
        ["P3: lease 1 is not living and holds", "P2: lease 1 ended without evidence",
         "P6: lease 1 ended without a reason", "has 0 audit records 'end', not 1"],
    ),
    "no guard": (
        "DELETE FROM occupied_devices WHERE device_uuid = 'GPU-a'",
        ["P1: device GPU-a is guarded as None and held as whole"],
    ),
    "a guard for nobody": (
        "INSERT INTO occupied_devices VALUES ('GPU-z', 'whole')",
        ["P1: device GPU-z is guarded as whole and held as None"],
    ),
    "two leases of a server": (
        "UPDATE leases SET user_name = 'ada', server_name = '' WHERE lease_id = 2",
        ["server ServerKey(hub_id='hub', user='ada', server='') has two living leases"],
    ),
    "an end without reason": (
        "UPDATE leases SET reason = NULL WHERE lease_id = 4",
        ["P6: lease 4 ended without a reason"],
    ),
    "an end without evidence": (
        "UPDATE leases SET finished_source = NULL WHERE lease_id = 4",
        ["P2: lease 4 ended without evidence"],
    ),
    "a grant off the record": (
        "DELETE FROM audit WHERE action = 'grant' AND lease_id = 1",
        ["P3: lease 1 (granted) has 0 audit records 'grant', not 1"],
    ),
    "a request off the record": (
        "DELETE FROM audit WHERE action = 'request' AND lease_id = 1",
        ["P3: lease 1 (granted) has 0 audit records 'request', not 1"],
    ),
    "an end off the record": (
        "DELETE FROM audit WHERE action = 'end'",
        ["P3: lease 4 (ended) has 0 audit records 'end', not 1"],
    ),
    "a refusal off the record": (
        "DELETE FROM audit WHERE action = 'refuse'",
        ["P3: lease 5 (ended) has 0 audit records 'refuse', not 1"],
    ),
    "an end on record twice": (
        "INSERT INTO audit (at, actor, action, lease_id, reason) "
        "SELECT at, actor, action, lease_id, reason FROM audit WHERE action = 'end'",
        ["P3: lease 4 (ended) has 2 audit records 'end', not 1"],
    ),
    "a refusal on record without reason": (
        "UPDATE audit SET reason = NULL WHERE action = 'refuse'",
        ["P3: audit record", "has no reason"],
    ),
}  # fmt: skip


@pytest.fixture
def spoilt(sqlite_url: str, open_ledger: Callable[..., Ledger]) -> Ledger:
    """Books with a grant, two shares, an end and a refusal, for spoiling; not checked after."""
    ledger = open_ledger(sqlite_url)
    broker = Broker(ledger, "hub")
    broker.publish(sharing_policy(), "hub", T0)
    broker.observe(inventory(device("a"), device("b")), T0)
    broker.request(claim("ada"), T0)
    broker.request(claim("ada", ML_SHARE, "one"), T0)
    broker.request(claim("ben", ML_SHARE), T0)
    ended = broker.request(claim("cho", ML_SHARE), T0)
    broker.end(ended.lease_id, WANTED, NEVER_RAN, T0)
    waiting = broker.request(claim("cho", may_wait=True), T0)
    broker.want_end(waiting.lease_id, WANTED, T0)
    assert broken_promises(ledger) == []
    return ledger


@pytest.mark.parametrize("what", SPOILS)
def test_a_broken_promise_is_told(spoilt: Ledger, what: str) -> None:
    statement, expected = SPOILS[what]
    engine = create_engine(spoilt.url)
    with engine.connect() as connection:
        connection.execute(text("PRAGMA foreign_keys = OFF"))
        connection.execute(text("PRAGMA ignore_check_constraints = ON"))
        for table in ("holds", "leases"):
            loosen(connection, table)
        connection.execute(text(statement))
        connection.commit()
    engine.dispose()
    told = "\n".join(broken_promises(spoilt))
    assert [part for part in expected if part not in told] == [], told


def loosen(connection: Connection, table: str) -> None:
    """Make a table anew without keys and constraints."""
    for statement in (
        f"CREATE TABLE loose AS SELECT * FROM {table}",
        f"DROP TABLE {table}",
        f"ALTER TABLE loose RENAME TO {table}",
    ):
        connection.execute(text(statement))
