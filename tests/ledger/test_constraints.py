"""The database itself refuses what the rules must never decide. The rules are bypassed here."""

from typing import Any

import pytest
from sqlalchemy import Connection, insert, update
from sqlalchemy.exc import IntegrityError

from gpuspawner.domain.devices import Mode
from gpuspawner.domain.leases import State
from gpuspawner.domain.slices import Hold
from gpuspawner.ledger import tables
from gpuspawner.ledger.store import Ledger
from tests.builders import T0, claim, hold_of, share_hold

LIVING = (State.WAITING, State.GRANTED, State.RUNNING, State.ENDING)


@pytest.fixture
def two(ledger: Ledger) -> tuple[int, int]:
    """The numbers of two waiting leases."""
    with ledger.write() as books:
        return books.add_lease(claim("ada"), T0), books.add_lease(claim("ben"), T0)


def refused(ledger: Ledger, *statements: Any) -> str:
    """Run statements as they are and return what the database said to the last."""
    *before, last = statements
    with ledger.write() as books:
        connection: Connection = books._connection
        for statement in before:
            connection.execute(statement)
        with pytest.raises(IntegrityError) as caught:
            connection.execute(last)
        connection.rollback()
    return str(caught.value.orig).lower()


def hold_row(hold: Hold) -> Any:
    item = hold.slice
    return insert(tables.holds).values(
        device_uuid=item.device_uuid, unit=item.unit, mode=item.mode, lease_id=hold.lease_id,
        host_id=item.host_id, memory_mib=item.memory_mib, model=item.model, group_name=hold.group,
    )  # fmt: skip


def occupied(uuid: str, mode: Mode) -> Any:
    return insert(tables.occupied_devices).values(device_uuid=uuid, mode=mode)


@pytest.mark.proves("P1", "R1")
def test_a_whole_device_is_not_held_twice(ledger: Ledger, two: tuple[int, int]) -> None:
    said = refused(
        ledger, occupied("GPU-a", Mode.WHOLE), hold_row(hold_of(two[0], "GPU-a")),
        hold_row(hold_of(two[1], "GPU-a")),
    )  # fmt: skip
    assert "unique" in said


@pytest.mark.proves("P1", "R1")
@pytest.mark.parametrize(
    ("mode", "unit"), [(Mode.INSTANCE, "MIG-1"), (Mode.TIME_SLICED, "share-0")]
)
def test_an_instance_or_a_share_is_not_held_twice(
    ledger: Ledger, two: tuple[int, int], mode: Mode, unit: str
) -> None:
    rows = [hold_row(hold_of(number, "GPU-a", mode=mode, unit=unit)) for number in two]
    assert "unique" in refused(ledger, occupied("GPU-a", mode), *rows)


def test_the_same_ordinal_of_two_devices_is_two_things(
    ledger: Ledger, two: tuple[int, int]
) -> None:
    with ledger.write() as books:
        for number, uuid in zip(two, ("GPU-a", "GPU-b"), strict=True):
            books.add_holds([share_hold(number, uuid, 0, 4096, "ml101")])
    with ledger.read() as books:
        assert len(books.holds()) == 2


@pytest.mark.proves("P1", "R1")
@pytest.mark.parametrize("first", [Mode.WHOLE, Mode.TIME_SLICED, Mode.INSTANCE])
@pytest.mark.parametrize("second", [Mode.WHOLE, Mode.TIME_SLICED, Mode.INSTANCE])
def test_a_device_has_one_mode(
    ledger: Ledger, two: tuple[int, int], first: Mode, second: Mode
) -> None:
    if first is second:
        return
    units = {Mode.WHOLE: "whole", Mode.TIME_SLICED: "share-0", Mode.INSTANCE: "MIG-1"}
    rows = [
        hold_row(hold_of(number, "GPU-a", mode=mode, unit=units[mode]))
        for number, mode in zip(two, (first, second), strict=True)
    ]
    assert "foreign key" in refused(ledger, occupied("GPU-a", first), *rows)


def test_a_second_mode_cannot_be_entered_for_an_occupied_device(ledger: Ledger) -> None:
    said = refused(ledger, occupied("GPU-a", Mode.WHOLE), occupied("GPU-a", Mode.TIME_SLICED))
    assert "unique" in said


def test_a_device_whose_mode_is_not_entered_is_not_held(
    ledger: Ledger, two: tuple[int, int]
) -> None:
    assert "foreign key" in refused(ledger, hold_row(hold_of(two[0], "GPU-a")))


def test_the_mode_of_a_held_device_does_not_change(ledger: Ledger, two: tuple[int, int]) -> None:
    change = update(tables.occupied_devices).values(mode=Mode.TIME_SLICED)
    said = refused(
        ledger, occupied("GPU-a", Mode.WHOLE), hold_row(hold_of(two[0], "GPU-a")), change
    )  # fmt: skip
    assert "foreign key" in said


def test_a_hold_has_a_lease(ledger: Ledger) -> None:
    said = refused(ledger, occupied("GPU-a", Mode.WHOLE), hold_row(hold_of(99, "GPU-a")))
    assert "foreign key" in said


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"mode": Mode.TIME_SLICED}, "whole_unit"),
        ({"unit": "share-0"}, "whole_unit"),
        ({"memory_mib": 0}, "memory"),
        ({"memory_mib": -1}, "memory"),
    ],
)
def test_a_hold_makes_sense(
    ledger: Ledger, two: tuple[int, int], values: dict[str, Any], name: str
) -> None:
    hold = hold_of(two[0], "GPU-a", **values)
    said = refused(ledger, occupied("GPU-a", hold.slice.mode), hold_row(hold))
    assert f"ck_holds_{name}" in said


@pytest.mark.parametrize("state", LIVING)
def test_a_server_has_one_living_lease(ledger: Ledger, state: State) -> None:
    row = {
        "hub_id": "hub", "user_name": "ada", "server_name": "", "profile": "{}",
        "engine": "docker", "may_wait": False, "start_seconds": 1, "requested_at": T0,
    }  # fmt: skip
    ended = insert(tables.leases).values(**row, state=State.ENDED, ended_at=T0)
    living = insert(tables.leases).values(**row, state=state, granted_at=T0, fence=1)
    again = insert(tables.leases).values(**row, state=State.WAITING)
    assert "unique" in refused(ledger, ended, ended, living, again)


@pytest.mark.parametrize("state", [State.GRANTED, State.RUNNING, State.ENDING])
def test_who_holds_has_a_fence(ledger: Ledger, two: tuple[int, int], state: State) -> None:
    change = update(tables.leases).where(tables.leases.c.lease_id == two[0])
    assert "ck_leases_held" in refused(ledger, change.values(state=state))
    assert "ck_leases_" in refused(ledger, change.values(state=state, granted_at=T0))


@pytest.mark.proves("R6")
def test_no_two_grants_have_one_fence(ledger: Ledger, two: tuple[int, int]) -> None:
    changes = [
        update(tables.leases)
        .where(tables.leases.c.lease_id == number)
        .values(state=State.GRANTED, granted_at=T0, fence=7)
        for number in two
    ]
    assert "unique" in refused(ledger, *changes)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"state": State.ENDED}, "ended"),
        ({"ended_at": T0}, "ended"),
        ({"state": "dreaming"}, "state"),
        ({"fence": 3}, "fenced"),
    ],
)
def test_a_lease_makes_sense(
    ledger: Ledger, two: tuple[int, int], values: dict[str, Any], name: str
) -> None:
    change = update(tables.leases).where(tables.leases.c.lease_id == two[0]).values(**values)
    assert f"ck_leases_{name}" in refused(ledger, change)


def test_there_is_one_pool(ledger: Ledger) -> None:
    assert "one_row" in refused(ledger, insert(tables.pool).values(pool_id=2, fence=0))
    assert "unique" in refused(ledger, insert(tables.pool).values(pool_id=1, fence=0))


def test_the_last_hold_of_a_device_frees_its_mode(ledger: Ledger, two: tuple[int, int]) -> None:
    with ledger.write() as books:
        for ordinal, number in enumerate(two):
            books.add_holds([share_hold(number, "GPU-a", ordinal, 4096, "ml101")])
        books.delete_holds(two[0])
    whole = hold_row(hold_of(two[0], "GPU-a"))
    assert "foreign key" in refused(ledger, whole)
    with ledger.write() as books:
        books.delete_holds(two[1])
        books.add_holds([hold_of(two[0], "GPU-a")])
    with ledger.read() as books:
        assert [hold.slice.mode for hold in books.holds()] == [Mode.WHOLE]
