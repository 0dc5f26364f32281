"""Whose a process is, and what that adds up to: tables of stories, and properties over any."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.domain.attribution import Neighbour, Origin, attribute
from gpuspawner.domain.devices import Device, DeviceUUID, Load, Mode, ProcessUse
from gpuspawner.domain.leases import Lease, State
from gpuspawner.domain.slices import Hold
from gpuspawner.domain.uses import (
    Attribution,
    ForeignProcess,
    OwnProcess,
    UnitUse,
    Use,
)
from tests.builders import (
    ML_SHARE,
    SMALL_MIG,
    T0,
    WHOLE,
    device,
    hold_of,
    inventory,
    key,
    mig_device,
    share_hold,
)

ADA, BEN, CHO = ("a" * 64, "b" * 64, "c" * 64)
STRANGER, INNER = ("d" * 64, "e" * 64)


def lease_of(lease_id: int, user: str, container: str | None, *holds: Hold) -> Lease:
    """Make a running lease; its profile is of the mode of what it holds."""
    mode = holds[0].slice.mode
    profile = {"whole": WHOLE, "mig": SMALL_MIG}.get(mode, ML_SHARE)
    return Lease(
        lease_id=lease_id, key=key(user), state=State.RUNNING, profile=profile, image=None,
        engine="docker", requested_at=T0, granted_at=T0, running_at=T0, run_id=container,
        slices=tuple(hold.slice for hold in holds),
    )  # fmt: skip


def runs(pid: int, *containers: str, command: str = "python3", kernel: str | None = None) -> Origin:
    """Make what the kernel says of a process."""
    return Origin(
        pid=pid, started=1, container_ids=containers, command=command, kernel_id=kernel
    )  # fmt: skip


def gpu(
    *processes: ProcessUse, name: str = "a", used: int | None = 5000, **values: object
) -> Device:
    """Make a GPU that lists these processes."""
    load = Load(used_mib=used, busy_percent=70)
    return device(name, load=load, processes=processes, **values)


def told(
    devices: Device | tuple[Device, ...], leases: list[Lease], *origins: Origin,
    containers: Mapping[str, Neighbour] = {},
) -> Attribution:  # fmt: skip
    """Attribute what one host shows."""
    seen = inventory(*(devices if isinstance(devices, tuple) else (devices,)))
    return attribute(seen, {each.pid: each for each in origins}, leases, containers)


def has(pid: int, memory: int | None, busy: int | None = 0, **values: bool) -> ProcessUse:
    return ProcessUse(pid=pid, memory_mib=memory, busy_percent=busy, **values)


WHOLE_A = lease_of(1, "ada", ADA, hold_of(1, "GPU-a"))
SHARE_1 = lease_of(1, "ada", ADA, share_hold(1, "GPU-a", 0, 4096, "ml101"))
SHARE_2 = lease_of(2, "ben", BEN, share_hold(2, "GPU-a", 1, 4096, "ml101"))


def test_shares_of_one_device_are_told_apart_by_their_containers() -> None:
    found = told(
        gpu(has(10, 1000, 40), has(11, 500, 90), has(20, 2000, 100)), [SHARE_1, SHARE_2],
        runs(10, ADA, kernel="k1"), runs(11, ADA, command="train"), runs(20, BEN),
    )  # fmt: skip
    assert found.uses == (
        Use(lease_id=1, uuid=DeviceUUID("GPU-a"), memory_mib=1500, busy_percent=90, processes=(
            OwnProcess(pid=10, memory_mib=1000, busy_percent=40, command="python3", kernel_id="k1"),
            OwnProcess(pid=11, memory_mib=500, busy_percent=90, command="train"),
        )),
        Use(lease_id=2, uuid=DeviceUUID("GPU-a"), memory_mib=2000, busy_percent=100, processes=(
            OwnProcess(pid=20, memory_mib=2000, busy_percent=100, command="python3"),
        )),
    )  # fmt: skip
    assert found.units == (
        UnitUse(uuid=DeviceUUID("GPU-a"), used_mib=5000, leases_mib=3500, foreign_mib=0,
                overhead_mib=0, untold_mib=0, other_mib=1500),
    )  # fmt: skip


def test_the_load_of_a_device_is_never_divided_among_those_who_share_it() -> None:
    found = told(gpu(has(10, 100, None), has(20, 100, 5)), [SHARE_1, SHARE_2],
                 runs(10, ADA), runs(20, BEN))  # fmt: skip
    assert [use.busy_percent for use in found.uses] == [None, 5]


def test_a_lease_without_a_process_uses_nothing() -> None:
    (use,) = told(gpu(used=400), [WHOLE_A]).uses
    assert (use.memory_mib, use.busy_percent, use.processes) == (0, 0, ())


@pytest.mark.proves("P5")
def test_where_processes_cannot_be_listed_nothing_is_known_and_nothing_is_zero() -> None:
    found = told(replace(gpu(used=4000), processes=None), [WHOLE_A])
    assert found.uses == (
        Use(lease_id=1, uuid=DeviceUUID("GPU-a"), memory_mib=None, busy_percent=None),
    )
    assert found.units == (UnitUse(uuid=DeviceUUID("GPU-a"), used_mib=4000),)


@pytest.mark.proves("P5")
def test_where_nothing_can_be_told_of_processes_an_empty_list_says_nothing_either() -> None:
    """To an agent in a container of its own the driver shows only what runs there."""
    seen = inventory(gpu(has(10, 100)), gpu(name="b", used=300, index=1))
    leases = [WHOLE_A, lease_of(2, "ben", BEN, hold_of(2, "GPU-b"))]
    found = attribute(seen, {}, leases, {}, unavailable="a container of its own")
    assert found.unavailable == "a container of its own"
    assert [(use.memory_mib, use.processes) for use in found.uses] == [(None, None)] * 2
    assert [unit.foreign_mib for unit in found.units] == [None, None]
    assert found.units[0] == UnitUse(uuid=DeviceUUID("GPU-a"), used_mib=5000)


def test_a_process_that_ended_between_two_reads_is_nobodys_for_that_moment() -> None:
    """It may have been the only one of its lease, of which then nothing is known."""
    (use,) = (found := told(gpu(has(10, 1000)), [WHOLE_A])).uses
    assert (use.memory_mib, use.processes) == (None, None)
    unit = found.units[0]
    assert (unit.foreign, unit.untold_mib, unit.other_mib) == ((), 1000, 4000)
    (use,) = told(gpu(has(10, 1000), has(11, 700)), [SHARE_1], runs(11, ADA)).uses
    assert use.memory_mib == 700


def test_memory_that_no_process_shows_is_the_one_tenants() -> None:
    """Managed memory counts in the device and in no process (gpu mechanics 1.6)."""
    (use,) = told(gpu(has(10, 1000), used=60_000), [WHOLE_A], runs(10, ADA)).uses
    assert use.memory_mib == 60_000
    both = told(gpu(has(10, 1000), has(9, 2000), used=60_000), [WHOLE_A], runs(10, ADA), runs(9))
    assert both.uses[0].memory_mib == 58_000
    stuck = told(gpu(has(10, 1000), has(9, 2000), used=60_000), [WHOLE_A], runs(10, ADA))
    assert stuck.uses[0].memory_mib == 58_000  # what cannot be traced is not hers
    hidden = told(gpu(has(10, 1000), has(9, None), used=60_000), [WHOLE_A], runs(10, ADA))
    assert hidden.uses[0].memory_mib == 1000
    shared = told(gpu(has(10, 1000), used=60_000), [SHARE_1], runs(10, ADA))
    assert (shared.uses[0].memory_mib, shared.units[0].other_mib) == (1000, 59_000)


def test_memory_that_the_driver_does_not_tell_is_unknown_unless_the_device_tells_it() -> None:
    (use,) = told(gpu(has(10, None), used=3000), [WHOLE_A], runs(10, ADA)).uses
    assert use.memory_mib == 3000
    assert told(gpu(has(10, None), used=None), [WHOLE_A], runs(10, ADA)).uses[0].memory_mib is None
    shared = told(gpu(has(10, None), has(11, 100)), [SHARE_1], runs(10, ADA), runs(11, ADA))
    assert shared.uses[0].memory_mib is None
    assert (shared.units[0].leases_mib, shared.units[0].other_mib) == (None, None)


def test_the_outermost_container_that_is_known_is_the_tenant() -> None:
    """What a tenant runs in containers of its own is the tenant's."""
    (use,) = told(gpu(has(10, 800), used=800), [SHARE_1], runs(10, ADA, INNER)).uses
    assert use.memory_mib == 800
    unknown_outside = told(gpu(has(10, 800)), [SHARE_1], runs(10, STRANGER, ADA))
    assert unknown_outside.uses[0].memory_mib == 800
    inside_a_neighbour = told(gpu(has(10, 800)), [SHARE_1], runs(10, STRANGER, ADA),
                              containers={STRANGER: Neighbour(name="jenkins")})  # fmt: skip
    assert inside_a_neighbour.uses[0].memory_mib == 0
    assert [each.container for each in inside_a_neighbour.units[0].foreign] == ["jenkins"]


def test_who_has_no_lease_of_the_device_is_foreign_there() -> None:
    other = lease_of(3, "cho", CHO, hold_of(3, "GPU-b"))
    found = told(
        (gpu(has(1, 300), has(2, 400), has(3, 500), has(4, 600)), gpu(name="b", index=1)),
        [other], runs(1, command="Xorg"), runs(2, STRANGER), runs(3, INNER), runs(4, CHO),
        containers={STRANGER: Neighbour(name="old-training", tolerated=True)},
    )  # fmt: skip
    assert found.units[0].foreign == (
        ForeignProcess(pid=1, memory_mib=300, command="Xorg"),
        ForeignProcess(
            pid=2, memory_mib=400, command="python3", container="old-training", tolerated=True
        ),
        ForeignProcess(pid=3, memory_mib=500, command="python3", container="e" * 12),
        ForeignProcess(pid=4, memory_mib=600, command="python3", container="c" * 12),
    )
    assert (found.units[0].foreign_mib, found.units[0].other_mib) == (1800, 3200)
    assert [(use.uuid, use.memory_mib) for use in found.uses] == [("GPU-b", 0)]


def test_instances_list_their_own_processes_and_few_chips_tell_their_load() -> None:
    card = mig_device("m", 5, 10)
    first, second = card.instances
    card = replace(card, instances=(
        replace(first, used_mib=900, processes=(has(10, 800, None),)),
        replace(second, used_mib=20, processes=()),
    ))  # fmt: skip
    mine = hold_of(1, "GPU-m", mode="mig", unit=first.uuid, memory_mib=5120)
    mine = replace(mine, slice=replace(mine.slice, mode=SMALL_MIG.mode))
    found = told(card, [lease_of(1, "ada", ADA, mine)], runs(10, ADA))
    assert [unit.uuid for unit in found.units] == [first.uuid, second.uuid]
    (use,) = found.uses
    assert (use.uuid, use.memory_mib, use.busy_percent) == (first.uuid, 900, None)
    known = replace(card.instances[0], busy_percent=35)  # a chip that tells it
    (use,) = told(replace(card, instances=(known,)), [lease_of(1, "ada", ADA, mine)],
                  runs(10, ADA)).uses  # fmt: skip
    assert use.busy_percent == 35


def test_compute_instances_that_share_memory_have_no_rest_to_tell() -> None:
    """The figure of used memory is that of both (gpu mechanics 1.12)."""
    card = mig_device("m", 10)
    part = replace(card.instances[0], profile="1c.2g.10gb", used_mib=9000,
                   processes=(has(10, 800, None),))  # fmt: skip
    mine = hold_of(1, "GPU-m", unit=part.uuid, mode=Mode.INSTANCE)
    found = told(replace(card, instances=(part,)), [lease_of(1, "ada", ADA, mine)], runs(10, ADA))
    assert (found.uses[0].memory_mib, found.units[0].other_mib) == (800, None)


MPS_1 = replace(SHARE_1, slices=tuple(replace(x, mode=Mode.MPS) for x in SHARE_1.slices))
MPS_2 = replace(SHARE_2, slices=tuple(replace(x, mode=Mode.MPS) for x in SHARE_2.slices))


def test_an_mps_server_is_nobodys_and_its_clients_are_their_owners() -> None:
    found = told(
        gpu(has(1, 60), has(10, 700, 20, mps_client=True)), [MPS_1],
        runs(1, command="nvidia-cuda-mps"), runs(10, ADA),
    )  # fmt: skip
    assert (found.uses[0].memory_mib, found.units[0].overhead_mib) == (700, 60)
    assert found.units[0].foreign == ()


@pytest.mark.proves("P5")
def test_an_mps_server_that_stands_for_its_clients_leaves_them_unknown() -> None:
    found = told(gpu(has(1, 4000)), [MPS_1, MPS_2], runs(1, command="nvidia-cuda-mps"))
    assert [(use.memory_mib, use.busy_percent, use.processes) for use in found.uses] == [
        (None, None, None)
    ] * 2
    assert found.units[0].overhead_mib == 4000


@pytest.mark.parametrize("leases", [[MPS_1, MPS_2], [SHARE_1, SHARE_2]])
def test_nobody_passes_for_an_mps_server_by_a_name(leases: list[Lease]) -> None:
    """What runs in somebody's container is that person's, whatever it calls itself."""
    found = told(gpu(has(10, 700, 20), has(20, 500, 5)), leases,
                 runs(10, ADA, command="nvidia-cuda-mps"), runs(20, BEN))  # fmt: skip
    assert [use.memory_mib for use in found.uses] == [700, 500]
    assert found.units[0].overhead_mib == 0


def test_where_nobody_has_mps_a_server_of_it_is_foreign() -> None:
    found = told(gpu(has(1, 4000)), [SHARE_1], runs(1, command="nvidia-cuda-mps"))
    assert (found.units[0].foreign_mib, found.units[0].overhead_mib) == (4000, 0)
    assert found.uses[0].memory_mib == 0


memories = st.none() | st.integers(0, 20_000)
listed = st.lists(
    st.tuples(memories, st.none() | st.integers(0, 100), st.sampled_from(
        [None, (), (ADA,), (BEN,), (STRANGER,), (ADA, INNER), ("mps",)]
    )),
    max_size=8,
)  # fmt: skip


@pytest.mark.proves("P5")
@given(listed, memories, st.sampled_from([[], [SHARE_1], [SHARE_1, SHARE_2], [WHOLE_A]]))
def test_the_parts_add_up_to_what_is_used(
    processes: list[tuple[int | None, int | None, tuple[str, ...] | None]],
    used: int | None,
    leases: list[Lease],
) -> None:
    card = gpu(*(has(pid, memory, busy) for pid, (memory, busy, _) in enumerate(processes, 1)),
               used=used)  # fmt: skip
    origins = [
        runs(pid, command="nvidia-cuda-mps") if ids == ("mps",) else runs(pid, *ids)
        for pid, (_, _, ids) in enumerate(processes, 1) if ids is not None
    ]  # fmt: skip
    found = told(card, leases, *origins)
    (unit,) = found.units
    parts = (
        unit.leases_mib, unit.foreign_mib, unit.overhead_mib, unit.untold_mib, unit.other_mib
    )  # fmt: skip
    if None not in parts:
        told_mib = sum(part or 0 for part in parts[:-1])
        assert sum(part or 0 for part in parts) == max(used or 0, told_mib)
    assert (unit.other_mib is None) >= (used is None)
    assert [use.lease_id for use in found.uses] == [lease.lease_id for lease in leases]
    for use in found.uses:
        whose = (ADA, BEN)[use.lease_id - 1]
        own = [memory for memory, _, ids in processes if ids is not None and ids[:1] == (whose,)]
        if use.memory_mib is not None and None not in own:
            assert use.memory_mib >= sum(each or 0 for each in own)
