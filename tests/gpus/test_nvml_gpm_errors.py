"""Figures of instances that fail: only that figure is unknown, and never 0."""

import importlib
from dataclasses import replace

import nvml_double
import pytest

from gpuspawner.domain.devices import HostId, Trouble
from gpuspawner.gpus.nvml import NVMLInventory

A, B, C = "MIG-a", "MIG-GPU-1/3/0", "MIG-c"  # in the GPU instances 1, 3 and 6
UNKNOWN = {A: None, B: None, C: None}
SUPPORT, ALLOC = "nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc"
SAMPLE, METRICS = "nvmlGpmMigSampleGet", "nvmlGpmMetricsGet"
GPU_INSTANCE = "nvmlDeviceGetGpuInstanceId"
CODES = (*range(1, 31), 999)
NEVER = (3, 13)


def work(double, passed, **worked):
    double.update(nvml_double.worked(1, passed, **worked))


def busy(seen):
    return {item.uuid: item.busy_percent for item in seen.devices[1].instances}


def without_figures(seen):
    return [
        replace(d, instances=tuple(replace(item, busy_percent=None) for item in d.instances))
        for d in seen.devices
    ]


@pytest.mark.proves("P5")
@pytest.mark.parametrize("symbol", [SUPPORT, ALLOC, SAMPLE, METRICS, GPU_INSTANCE])
def test_a_failing_call_costs_no_other_reading(hopper, at, symbol):
    where = "" if symbol in (ALLOC, METRICS) else ".1"
    if symbol == GPU_INSTANCE:
        where = ".1.mig.2"
    for code in (None, *CODES):
        if code is not None:
            hopper[f"fail.{symbol}{where}"] = code
        inventory = NVMLInventory(HostId("host-a"), 60)
        for passed in (100, 200, 300):
            work(hopper, passed, i1=passed / 2, i3=passed / 4, i6=0)
            seen = inventory.look(at(passed / 10))
        inventory.close()
        assert hopper.samples() == (0, 0, 0), code
        assert hopper.calls("nvmlInitWithFlags") == hopper.calls("nvmlShutdown"), code
        if code is None:
            healthy = seen
            assert busy(healthy) == {A: 50, B: 25, C: 0}
            continue
        assert busy(seen) == UNKNOWN, code
        assert without_figures(seen) == without_figures(healthy), code


@pytest.mark.proves("P5")
@pytest.mark.parametrize(
    ("line", "fourth"),
    [
        (f"fail.{SAMPLE}.1.gi.3", None),  # the fourth look takes the first sample again
        (f"fail.{METRICS}.1.gi.3", 25),  # the third one did, and had nothing to compare
        ("gpu.1.gi.3.code", 25),
    ],
)
def test_a_failure_of_one_instance_is_its_own(hopper, at, line, fourth):
    for code in CODES:
        inventory = NVMLInventory(HostId("host-a"), 60)
        found = []
        for look in range(1, 6):
            if look == 2:
                hopper[line] = code
            if look == 4:
                del hopper[line]
            work(hopper, 100 * look, i1=50 * look, i3=25 * look, i6=0)
            found.append(busy(inventory.look(at(10 * look))))
        inventory.close()
        assert hopper.samples() == (0, 0, 0), code
        if code == 1:  # the session is over: nobody is asked any more
            assert (found[1][B], found[2:]) == (None, [UNKNOWN] * 3)
            continue
        assert [item[A] for item in found] == [None, 50, 50, 50, 50], code
        assert [item[C] for item in found] == [None, 0, 0, 0, 0], code
        later = [None, None] if code in NEVER else [fourth, 25]
        assert [item[B] for item in found] == [None, None, None, *later], code


@pytest.mark.parametrize("code", NEVER)
@pytest.mark.parametrize("symbol", [ALLOC, SAMPLE, METRICS])
def test_what_a_gpu_lacks_is_not_asked_for_again(hopper, inventory, looks, symbol, code):
    hopper[f"fail.{symbol}"] = code
    for _ in range(5):
        assert busy(looks()) == UNKNOWN
    assert hopper.calls(symbol) == 3  # once for each instance
    inventory.close()
    del hopper[f"fail.{symbol}"]
    looks()
    assert busy(looks()) == {A: 25, B: 0, C: 100}  # a new session, perhaps of a new driver


def test_a_gpu_that_cannot_say_for_the_moment_is_asked_again(hopper, looks):
    hopper[f"fail.{SUPPORT}.1"] = 999
    looks()
    looks()
    del hopper[f"fail.{SUPPORT}.1"]
    assert busy(looks()) == UNKNOWN
    assert busy(looks()) == {A: 25, B: 0, C: 100}
    assert hopper.calls(SUPPORT) == 3


def test_an_old_driver_has_no_figures(old_double, at):
    old_double["gpu.1.gpm"] = 1
    work(old_double, 0, i1=0, i3=0, i6=0)
    inventory = NVMLInventory(HostId("host-a"), 60)
    for seconds in (0, 10, 20):
        seen = inventory.look(at(seconds))
        assert (busy(seen), seen.devices[1].unavailable) == (UNKNOWN, None)
    inventory.close()
    assert old_double.calls(GPU_INSTANCE) == 0


def test_an_old_binding_has_no_figures(hopper, looks, monkeypatch):
    pynvml = importlib.import_module("pynvml")
    for name in [name for name in vars(pynvml) if "Gpm" in name]:
        monkeypatch.delattr(pynvml, name)
    looks()
    seen = looks()
    assert (busy(seen), seen.devices[1].unavailable) == (UNKNOWN, None)


@pytest.mark.proves("P5")
@pytest.mark.parametrize("line", ["gpu.1.lost", "fail.nvmlDeviceGetCount_v2"])
def test_a_figure_does_not_outlive_its_look(hopper, looks, line):
    looks()
    assert busy(looks()) == {A: 25, B: 0, C: 100}
    hopper[line] = 15
    assert busy(looks()) == UNKNOWN


def test_figures_of_instances_that_could_not_be_listed_are_unknown(hopper, looks):
    looks()
    looks()
    hopper["fail.nvmlDeviceGetMaxMigDeviceCount.1"] = 999
    seen = looks()
    assert (busy(seen), seen.devices[1].unavailable.trouble) == (UNKNOWN, Trouble.UNKNOWN)


def test_a_metric_that_nobody_fills_in_is_not_idle(hopper, looks, monkeypatch):
    looks()
    monkeypatch.setattr(importlib.import_module("pynvml"), "nvmlGpmMetricsGet", lambda query: query)
    assert busy(looks()) == UNKNOWN
