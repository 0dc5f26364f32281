"""The samples of GPM: none is left behind, and none is used after its end."""

import importlib

import nvml_double
import pytest

from gpuspawner.domain.devices import HostId, Trouble
from gpuspawner.gpus.nvml import NVMLInventory

LONG = 600
FREE, SAMPLE = "nvmlGpmSampleFree", "nvmlGpmMigSampleGet"
INIT, SHUTDOWN = "nvmlInitWithFlags", "nvmlShutdown"
SLOTS = (0, 2, 5)


@pytest.fixture
def hurried(hopper):
    made = NVMLInventory(HostId("host-a"), 1.0)
    yield made
    made.close()


def worked(double, seconds):
    """Let all GPU instances have worked for half of the time."""
    double.update(nvml_double.worked(1, seconds, **dict.fromkeys(("i1", "i3", "i6"), seconds / 2)))


def busy(seen):
    return [item.busy_percent for item in seen.devices[1].instances]


def test_none_is_left_after_many_looks_layouts_and_sessions(hopper, inventory, at):
    layouts = [{0, 2, 5}, {0, 5}, set(), {2}, {0, 2, 5}]
    for turn in range(60):
        layout = layouts[turn // 2 % len(layouts)]
        for slot in SLOTS:
            hopper.pop(f"gpu.1.mig.{slot}.uuid", None)
            if slot in layout:
                hopper[f"gpu.1.mig.{slot}.uuid"] = f"MIG-{slot}"
        worked(hopper, 10 * turn + 10)
        inventory.look(at(10 * turn))
        assert hopper.samples() == (len(layout), 0, 0), turn
        if turn % 7 == 6:
            inventory.close()
            assert hopper.samples() == (0, 0, 0), turn
    inventory.close()
    assert hopper.samples() == (0, 0, 0)
    assert hopper.calls("nvmlGpmSampleAlloc") == hopper.calls(FREE) > 60


def test_closing_frees_them_before_the_session_ends(hopper, inventory, at):
    inventory.look(at())
    inventory.close()
    inventory.close()
    assert (hopper.samples(), hopper.calls(FREE), hopper.calls(SHUTDOWN)) == ((0, 0, 0), 3, 1)


def test_a_new_session_frees_them_and_begins_anew(hopper, inventory, at):
    inventory.look(at())
    hopper["gpu.0.lost"] = 15  # another GPU's trouble, for which the session is renewed
    worked(hopper, 2)
    assert busy(inventory.look(at(2))) == [50, 50, 50]
    del hopper["gpu.0.lost"]
    worked(hopper, 100)
    assert busy(inventory.look(at(100))) == [None] * 3
    assert (hopper.calls(INIT), hopper.samples()) == (2, (3, 0, 0))
    worked(hopper, 110)
    assert busy(inventory.look(at(110))) == [50, 50, 50]


def test_the_samples_of_a_lost_gpu_are_freed_with_the_session(hopper, inventory, at):
    inventory.look(at())
    hopper["gpu.1.lost"] = 15
    inventory.look(at(2))
    inventory.look(at(100))
    assert (hopper.calls(INIT), hopper.samples()) == (2, (0, 0, 0))


def test_a_session_that_somebody_ended_is_sent_no_sample(hopper, inventory, at):
    inventory.look(at())
    importlib.import_module("pynvml").nvmlShutdown()
    inventory.look(at(2))
    worked(hopper, 100)
    assert busy(inventory.look(at(100))) == [None] * 3
    assert hopper.calls(INIT) == 2
    assert (hopper.calls(FREE), hopper.samples()) == (0, (3, 3, 0))


def test_a_session_that_ends_during_a_reading_is_asked_no_more(hopper, inventory, at):
    inventory.look(at())
    hopper[f"fail.{SAMPLE}"] = 1
    for seconds in (10, 20, 30):
        assert busy(inventory.look(at(seconds))) == [None] * 3
    assert (hopper.calls(SAMPLE), hopper.calls(FREE)) == (3 + 1, 0)
    assert hopper.samples() == (4, 0, 0)
    inventory.close()
    assert hopper.samples() == (0, 0, 0)  # it was not over after all


@pytest.mark.parametrize("code", [*range(1, 31), 999])
def test_a_sample_that_cannot_be_freed_is_not_freed_twice(hopper, inventory, at, code):
    hopper[f"fail.{FREE}"] = code
    for seconds in (0, 10, 20):
        worked(hopper, seconds)
        seen = inventory.look(at(seconds))
    assert (busy(seen), seen.devices[1].unavailable) == ([50, 50, 50], None)
    del hopper[f"fail.{FREE}"]
    inventory.close()
    assert (hopper.calls(FREE), hopper.samples()) == (6 + 3, (0, 6, 0))


# ---- calls that hang ----


def test_a_reading_that_came_back_late_leaves_all_in_order(hopper, hurried, at):
    hurried.look(at())
    key = f"hang.{SAMPLE}.1.gi.1"
    hopper[key] = LONG
    for seconds in (10, 20):
        worked(hopper, seconds)
        seen = hurried.look(at(seconds))
        assert seen.devices[1].unavailable.trouble is Trouble.UNKNOWN
        assert busy(seen) == [None] * 3
    assert hopper.calls(SAMPLE) == 3 + 2  # in the second of the three
    hopper.let_go(key)
    assert hopper.samples() == (3, 0, 0)
    worked(hopper, 5000)
    seen = hurried.look(at(5000))
    assert (busy(seen), seen.devices[1].unavailable) == ([50, 50, 50], None)
    hurried.close()
    assert hopper.samples() == (0, 0, 0)


def test_closing_while_a_reading_hangs_frees_nothing_under_it(hopper, hurried, at):
    hurried.look(at())
    key = f"hang.{SAMPLE}.1.gi.1"
    hopper[key] = LONG
    hurried.look(at(10))
    before = hopper.samples()
    hurried.close()
    assert (hopper.samples(), hopper.calls(SHUTDOWN)) == (before, 0)
    assert before == (4, 0, 0)  # the one that is being taken, too
    hopper.let_go(key)
    hurried.close()
    assert (hopper.calls(SHUTDOWN), hopper.samples()) == (1, (0, 0, 0))


def test_a_closing_that_hangs_frees_each_sample_once(hopper, hurried, at):
    hurried.look(at())
    hopper[f"hang.{FREE}"] = LONG
    hurried.close()
    hurried.close()
    assert (hopper.calls(FREE), hopper.calls(SHUTDOWN)) == (1, 0)
    hopper.let_go(f"hang.{FREE}")
    assert (hopper.calls(FREE), hopper.calls(SHUTDOWN)) == (3, 1)
    assert hopper.samples() == (0, 0, 0)


def test_every_gpu_has_samples_of_its_own(hopper, inventory, at):
    hopper.update(nvml_double.gpu(2, mig=1, gpm=1))
    hopper.update(nvml_double.instance(2, 0, "MIG-x"))
    hopper["gpu.2.gi.1.work"] = "0/0"
    inventory.look(at())
    worked(hopper, 10)
    hopper["gpu.2.gi.1.work"] = "1/10"
    seen = inventory.look(at(10))
    assert busy(seen) == [50, 50, 50]
    assert [item.busy_percent for item in seen.devices[2].instances] == [10]
    assert hopper.samples() == (4, 0, 0)
