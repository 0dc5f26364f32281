"""How busy an instance is, on the chips that tell it, through the real binding."""

import importlib

import nvml_double
import pytest

from gpuspawner.gpus.nvml_gpm import InstanceActivity

A, B, C = "MIG-a", "MIG-GPU-1/3/0", "MIG-c"  # in the GPU instances 1, 3 and 6
UNKNOWN = {A: None, B: None, C: None}
SUPPORT, ALLOC = "nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc"
SAMPLE, METRICS = "nvmlGpmMigSampleGet", "nvmlGpmMetricsGet"
GPU_INSTANCE = "nvmlDeviceGetGpuInstanceId"
NEVER = (3, 13)


def work(double, passed, **worked):
    double.update(nvml_double.worked(1, passed, **worked))


def busy(seen):
    return {item.uuid: item.busy_percent for item in seen.devices[1].instances}


# ---- the figure ----


def test_a_first_look_has_nothing_to_compare_with(hopper, looks):
    assert busy(looks()) == UNKNOWN
    assert (hopper.calls(METRICS), hopper.samples()) == (0, (3, 0, 0))


def test_an_instance_is_as_busy_as_since_the_look_before(hopper, looks):
    looks(100, 100, 100)
    assert busy(looks(25, 0, 100)) == {A: 25, B: 0, C: 100}
    assert busy(looks(0, 50, 75)) == {A: 0, B: 50, C: 75}
    assert hopper.samples() == (3, 0, 0)


@pytest.mark.parametrize(
    ("share", "percent"), [(0.4, 0), (0.5, 1), (12.4, 12), (12.5, 13), (99.6, 100), (100, 100)]
)
def test_a_share_is_told_in_whole_percent(looks, share, percent):
    looks()
    assert busy(looks(i1=share))[A] == percent


@pytest.mark.parametrize("share", [-0.25, -25, 100.25, 1e9, "inf", "nan"])
def test_a_share_that_nobody_can_read_is_unknown_and_not_zero(looks, share):
    looks()
    seen = looks(i1=float(share))
    assert busy(seen) == {A: None, B: 0, C: 100}
    assert seen.devices[1].unavailable is None


def test_after_a_share_that_nobody_can_read_the_next_one_is_good(hopper, inventory, at):
    inventory.look(at())
    work(hopper, 0, i1=0)  # no time has passed: 0/0
    assert busy(inventory.look(at(10)))[A] is None
    work(hopper, 100, i1=40)
    assert busy(inventory.look(at(20)))[A] == 40


# ---- the distance of two samples ----


@pytest.fixture
def reading(hopper, at):
    """One reading of GPU 1 at a time in seconds, with an activity and a session of its own."""
    pynvml = importlib.import_module("pynvml")
    pynvml.nvmlInit()
    handle, activity = pynvml.nvmlDeviceGetHandleByIndex(1), InstanceActivity()

    def read(seconds):
        migs = {
            uuid: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
            for uuid, slot in ((A, 0), (B, 2), (C, 5))
        }
        return activity.read(pynvml, handle, migs, lambda: at(seconds))

    yield read
    for sample in activity.give_up():
        pynvml.nvmlGpmSampleFree(sample)
    pynvml.nvmlShutdown()
    assert hopper.samples() == (0, 0, 0)


def test_two_samples_are_100_ms_apart_or_the_older_one_is_kept(hopper, reading):
    assert reading(0) == UNKNOWN
    work(hopper, 50, i1=50, i3=50, i6=50)
    assert reading(0.099) == UNKNOWN  # the last result
    assert hopper.calls(SAMPLE) == 3
    work(hopper, 100, i1=50, i3=50, i6=50)
    assert reading(0.1) == {A: 50, B: 50, C: 50}  # of the whole time, not of its second half
    work(hopper, 150, i1=50, i3=75, i6=100)
    assert reading(0.1) == reading(0.15) == {A: 50, B: 50, C: 50}
    assert hopper.calls(SAMPLE) == 6
    work(hopper, 200, i1=50, i3=75, i6=150)
    assert reading(0.2) == {A: 0, B: 25, C: 100}
    assert hopper.samples() == (3, 0, 0)


def test_a_clock_that_was_set_back_begins_anew(hopper, reading):
    reading(0)
    work(hopper, 100, i1=50, i3=50, i6=50)
    assert reading(-3600) == UNKNOWN
    work(hopper, 200, i1=50, i3=60, i6=70)
    assert reading(-3599) == {A: 0, B: 10, C: 20}


def test_a_sample_is_as_old_as_it_is_and_not_as_its_look(hopper, at):
    pynvml = importlib.import_module("pynvml")
    pynvml.nvmlInit()
    handle, activity = pynvml.nvmlDeviceGetHandleByIndex(1), InstanceActivity()
    migs = {A: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 0)}
    clock = iter([at(0), at(30), at(30.05), at(30.1), at(30.1)]).__next__
    assert activity.read(pynvml, handle, migs, clock) == {A: None}  # its call hung for 30 s
    work(hopper, 100, i1=50)
    assert activity.read(pynvml, handle, migs, clock) == {A: None}  # 50 ms after it
    work(hopper, 200, i1=50)
    assert activity.read(pynvml, handle, migs, clock) == {A: 25}
    for sample in activity.give_up():
        pynvml.nvmlGpmSampleFree(sample)
    pynvml.nvmlShutdown()


# ---- who is asked ----


def test_instances_that_share_a_gpu_instance_have_no_figure_of_their_own(hopper, looks):
    hopper["gpu.1.mig.2.gi_id"] = 1
    looks()
    assert busy(looks()) == {A: None, B: None, C: 100}
    assert (hopper.calls(SAMPLE), hopper.samples()) == (2, (1, 0, 0))


def test_an_instance_that_comes_to_share_begins_anew_when_it_is_alone(hopper, looks):
    looks()
    looks()
    hopper.update(nvml_double.instance(1, 3, "MIG-d", gi_id=1))
    assert busy(looks()) == {A: None, B: 0, C: 100, "MIG-d": None}
    assert hopper.samples() == (2, 0, 0)
    del hopper["gpu.1.mig.3.uuid"]
    assert busy(looks()) == {A: None, B: 0, C: 100}
    assert busy(looks(i1=30)) == {A: 30, B: 0, C: 100}


def test_whose_gpu_instance_is_unknown_may_be_in_anybodys(hopper, looks):
    looks()
    hopper[f"fail.{GPU_INSTANCE}.1.mig.2"] = 999
    assert busy(looks(100, 100, 100)) == UNKNOWN
    del hopper[f"fail.{GPU_INSTANCE}.1.mig.2"]
    assert busy(looks(0, 0, 0)) == {A: 50, B: 50, C: 50}  # since the last sample
    assert hopper.samples() == (3, 0, 0)


def test_with_an_incomplete_list_any_gpu_instance_may_be_shared(hopper, looks):
    looks()
    hopper["fail.nvmlDeviceGetMigDeviceHandleByIndex.1.mig.2"] = 999
    assert busy(looks(100, 100, 100)) == UNKNOWN
    del hopper["fail.nvmlDeviceGetMigDeviceHandleByIndex.1.mig.2"]
    assert busy(looks(0, 0, 0)) == {A: 50, B: 50, C: 50}


def test_the_sample_of_an_instance_that_went_is_freed(hopper, looks):
    looks()
    del hopper["gpu.1.mig.2.uuid"]
    assert busy(looks()) == {A: 25, C: 100}
    assert hopper.samples() == (2, 0, 0)


def test_an_instance_in_another_gpu_instance_begins_anew(hopper, looks):
    looks()
    hopper.update({"gpu.1.mig.2.gi_id": 9, "gpu.1.gi.9.work": "500/900"})
    assert busy(looks()) == {A: 25, B: None, C: 100}
    hopper["gpu.1.gi.9.work"] = "510/1000"
    assert busy(looks()) == {A: 25, B: 10, C: 100}
    assert hopper.samples() == (3, 0, 0)


def test_another_instance_in_the_same_gpu_instance_begins_anew(hopper, looks):
    looks()
    hopper["gpu.1.mig.2.uuid"] = "MIG-new"
    assert busy(looks()) == {A: 25, "MIG-new": None, C: 100}
    assert hopper.samples() == (3, 0, 0)


def test_a_gpu_that_is_whole_again_keeps_no_samples(hopper, looks):
    looks()
    hopper["gpu.1.mig"] = 0
    assert looks().devices[1].instances == ()
    assert hopper.samples() == (0, 0, 0)
    hopper["gpu.1.mig"] = 1
    assert busy(looks()) == UNKNOWN
    assert hopper.calls(SUPPORT) == 1


@pytest.mark.parametrize("line", [{"gpu.1.gpm": 0}, *({f"fail.{SUPPORT}.1": c} for c in NEVER)])
def test_a_chip_without_gpm_is_asked_once_in_a_session(hopper, inventory, looks, line):
    hopper.update(line)
    for _ in range(3):
        assert busy(looks()) == UNKNOWN
    assert [hopper.calls(name) for name in (SUPPORT, GPU_INSTANCE, ALLOC, SAMPLE)] == [1, 0, 0, 0]
    inventory.close()
    looks()
    assert hopper.calls(SUPPORT) == 2


def test_gpus_without_instances_are_not_asked(hopper, looks):
    hopper.update({"gpu.0.gpm": 1, "gpu.2.gpm": 1})
    looks()
    looks()
    assert (hopper.calls(SUPPORT), hopper.calls(SAMPLE)) == (1, 6)
