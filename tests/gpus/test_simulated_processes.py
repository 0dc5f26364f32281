"""Processes on simulated GPUs: where they are listed, and what they add to the readings."""

import contextlib
import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuspawner.domain.devices import Load, ProcessUse, Trouble
from gpuspawner.gpus import presets
from gpuspawner.gpus.simulated import SimulatedInventory
from tests.gpus.simulated_host import (
    A100,
    FIRST,
    H100,
    HOST,
    LAB,
    OTHER_TURING,
    SECOND,
    THIRD,
    TURING,
    inventory,
    see,
    state,
    written,
)

__all__ = ["inventory", "see", "state"]


def test_an_untouched_lab_knows_that_nothing_runs(see):
    assert [see(uuid).processes for uuid in LAB.devices] == [(), (), None, ()]
    assert [part.processes for part in see(A100).instances] == [(), (), ()]


def test_processes_are_listed_by_pid_on_each_gpu_where_they_run(inventory, see):
    inventory.run(900, TURING, memory_mib=100, busy_percent=80, mps=True)
    inventory.run(40, TURING, memory_mib=200)
    inventory.run(900, H100, memory_mib=None, busy_percent=None)
    assert see(TURING).processes == (
        ProcessUse(pid=40, memory_mib=200, busy_percent=0),
        ProcessUse(pid=900, memory_mib=100, busy_percent=80, mps_client=True),
    )
    assert see(H100).processes == (ProcessUse(pid=900),)
    assert see(OTHER_TURING).processes == ()


def test_a_process_of_an_instance_is_listed_there_and_is_busy_for_an_unknown_share(inventory, see):
    inventory.run(7, SECOND, memory_mib=1000)
    inventory.run(7, THIRD, memory_mib=20, busy_percent=None, mps=True)
    assert [part.processes for part in see(A100).instances] == [
        (),
        (ProcessUse(pid=7, memory_mib=1000),),
        (ProcessUse(pid=7, memory_mib=20, mps_client=True),),
    ]
    assert see(A100).processes is None


def test_running_again_takes_the_place_of_what_was_there(inventory, see):
    inventory.run(7, TURING, memory_mib=11264, busy_percent=50, mps=True)
    inventory.run(7, TURING, memory_mib=11000)
    assert see(TURING).processes == (ProcessUse(pid=7, memory_mib=11000, busy_percent=0),)


def test_a_process_ends_everywhere_and_one_that_never_ran_ends_too(inventory, see, state):
    inventory.run(7, TURING, memory_mib=1)
    inventory.run(7, FIRST, memory_mib=1)
    inventory.run(8, TURING, memory_mib=1)
    inventory.end(7)
    inventory.end(7)
    assert [use.pid for use in see(TURING).processes] == [8]
    assert see(A100).instances[0].processes == ()
    inventory.end(8)
    assert "processes" not in json.loads(state.read_text())


def test_memory_of_processes_is_added_to_what_an_empty_gpu_shows(inventory, see):
    empty = see(TURING).load.used_mib
    inventory.run(7, TURING, memory_mib=1000)
    inventory.run(8, TURING, memory_mib=500)
    assert see(TURING).load.used_mib == empty + 1500
    inventory.run(8, TURING, memory_mib=None)
    assert see(TURING).load.used_mib is None
    inventory.end(8)
    assert see(TURING).load.used_mib == empty + 1000


def test_memory_of_processes_is_added_in_instances_and_in_their_sum(inventory, see):
    inventory.run(7, FIRST, memory_mib=1000)
    inventory.run(8, FIRST, memory_mib=500)
    assert [part.used_mib for part in see(A100).instances] == [1512, 12, 12]
    assert see(A100).load.used_mib == 1536
    inventory.run(9, SECOND, memory_mib=None)
    assert [part.used_mib for part in see(A100).instances] == [1512, None, 12]
    assert see(A100).load.used_mib is None


def test_a_gpu_is_as_busy_as_its_busiest_process(inventory, see):
    idle = see(TURING).load
    inventory.run(7, TURING, memory_mib=0, busy_percent=30)
    inventory.run(8, TURING, memory_mib=0, busy_percent=80)
    assert see(TURING).load.busy_percent == 80
    assert see(TURING).load.temperature_c == idle.temperature_c + 32
    inventory.run(7, TURING, memory_mib=0, busy_percent=None)
    assert see(TURING).load.busy_percent is None
    inventory.run(9, FIRST, memory_mib=0)
    assert see(A100).load.busy_percent is None


def test_each_load_that_is_set_by_hand_wins(inventory, see):
    inventory.run(7, TURING, memory_mib=1000, busy_percent=80)
    inventory.set_load(TURING, busy_percent=5)
    assert (see(TURING).load.used_mib > 1000, see(TURING).load.busy_percent) == (True, 5)
    inventory.set_load(TURING, used_mib=20, busy_percent=None)
    assert (see(TURING).load.used_mib, see(TURING).load.busy_percent) == (20, None)
    inventory.run(8, FIRST, memory_mib=None)
    inventory.set_load(FIRST, used_mib=70)
    assert [part.used_mib for part in see(A100).instances] == [70, 12, 12]


def test_the_driver_has_a_reserve_that_is_not_counted_as_used(inventory, see):
    for uuid in LAB.devices:
        load, memory_mib = see(uuid).load, see(uuid).memory_mib
        assert 0.014 < load.reserved_mib / memory_mib < 0.016
        assert load.used_mib < 100
    before = see(H100).load.reserved_mib
    inventory.run(7, H100, memory_mib=40000)
    assert see(H100).load.reserved_mib == before == presets.H100_80.reserved_mib
    inventory.run(7, H100, memory_mib=None)
    assert see(H100).load.reserved_mib == before


def test_a_gpu_may_be_full_and_then_has_no_room_for_a_reserve(inventory, see):
    inventory.run(7, TURING, memory_mib=11264)
    assert (see(TURING).load.used_mib, see(TURING).load.reserved_mib) == (11264, 0)
    inventory.set_load(OTHER_TURING, used_mib=11200)
    assert see(OTHER_TURING).load.reserved_mib == 64
    inventory.run(7, FIRST, memory_mib=9856)
    assert see(A100).instances[0].used_mib == 9856


def test_of_a_lost_gpu_no_processes_are_known_until_it_is_back(inventory, see, at):
    inventory.run(7, TURING, memory_mib=10)
    inventory.run(7, FIRST, memory_mib=10)
    before = inventory.look(at())
    for uuid in (TURING, A100):
        inventory.lose(uuid)
    assert see(TURING).processes is None
    assert see(TURING).load == Load()
    assert [part.processes for part in see(A100).instances] == [None] * 3
    for uuid in (TURING, A100):
        inventory.return_(uuid)
    assert inventory.look(at()) == before


def test_with_trouble_of_the_host_no_processes_are_known(inventory, at):
    inventory.run(7, TURING, memory_mib=10)
    before = inventory.look(at())
    inventory.trouble("Gone.")
    seen = inventory.look(at()).devices
    assert {d.unavailable.trouble for d in seen} == {Trouble.UNKNOWN}
    assert [d.processes for d in seen] == [None] * 4
    assert [part.processes for part in seen[2].instances] == [None] * 3
    inventory.trouble(None)
    assert inventory.look(at()) == before


def test_a_sick_gpu_still_lists_its_processes(inventory, see):
    inventory.run(7, TURING, memory_mib=10)
    inventory.xid(TURING, 79)
    assert [use.pid for use in see(TURING).processes] == [7]


def test_a_new_layout_ends_what_ran_on_that_gpu_only(inventory, see):
    inventory.run(7, FIRST, memory_mib=10)
    inventory.run(7, TURING, memory_mib=10)
    inventory.relayout(A100, ["2g.10gb"] * 3)
    assert [part.processes for part in see(A100).instances] == [()] * 3
    assert [use.pid for use in see(TURING).processes] == [7]


def test_turning_partitions_on_or_off_ends_what_ran_on_that_gpu(inventory, see, state):
    inventory.run(7, H100, memory_mib=10)
    inventory.partition(H100, True)
    assert (see(H100).processes, written(state)) == (None, [])
    inventory.run(8, FIRST, memory_mib=10)
    inventory.partition(A100, False)
    assert (see(A100).processes, written(state)) == ((), [])
    inventory.run(8, A100, memory_mib=10)
    assert [use.pid for use in see(A100).processes] == [8]


PLACES = st.sampled_from([TURING, H100, FIRST, SECOND])
RUNNING = st.dictionaries(
    st.tuples(st.integers(1, 2**31 - 1), PLACES),
    st.tuples(st.none() | st.integers(0, 9856), st.none() | st.integers(0, 100), st.booleans()),
    max_size=8,
)


def adds_up(processes, used_mib, memory_mib):
    parts = [use.memory_mib for use in processes]
    if None in parts:
        return used_mib is None
    return sum(parts) <= used_mib <= memory_mib


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(RUNNING)
def test_used_memory_is_never_less_than_the_processes_nor_more_than_there_is(at, running):
    inventory = SimulatedInventory(HOST, "mixed-lab")
    for (pid, uuid), (mib, busy, mps) in running.items():
        told = {"busy_percent": busy} if uuid in LAB.devices else {}
        with contextlib.suppress(ValueError):  # there is no room for it
            inventory.run(pid, uuid, memory_mib=mib, mps=mps, **told)
    for seen in inventory.look(at()).devices:
        for item in seen.instances:
            assert adds_up(item.processes, item.used_mib, item.memory_mib)
        load, processes = seen.load, seen.processes or ()
        assert 0 <= load.reserved_mib <= seen.memory_mib - (load.used_mib or 0)
        if not seen.partitioned:
            assert adds_up(processes, load.used_mib, seen.memory_mib)
            known = [use.busy_percent or 0 for use in processes]
            assert load.busy_percent is None or load.busy_percent >= max(known, default=0)
