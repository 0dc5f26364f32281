"""How busy the processes of a GPU were: samples, and what passes for one and is none."""

import importlib

import nvml_double
import pytest

from gpuspawner.domain.devices import ProcessUse

SAMPLES = "nvmlDeviceGetProcessUtilization"


def listed(**sizes):
    """A list as the double has it: PIDs with MiB."""
    return ",".join(f"{pid[1:]}:{mib * nvml_double.MIB}" for pid, mib in sizes.items())


def busy(seen, index=0):
    return {item.pid: item.busy_percent for item in seen.devices[index].processes}


def test_busy_is_the_most_since_the_look_before(double, inventory, at, us):
    double["gpu.0.processes"] = listed(p11=1, p12=1, p13=1)
    double["gpu.0.samples"] = (
        f"11:{us(-0.9)}:30,11:{us(-0.5)}:80,11:{us(-0.1)}:20,12:{us(-0.1)}:100,13:{us(-0.1)}:0"
    )
    assert busy(inventory.look(at())) == {11: 80, 12: 100, 13: 0}  # each for itself, never a part


def test_a_process_without_a_sample_was_idle(double, inventory, at, us):
    double["gpu.0.processes"] = listed(p11=1, p12=1)
    double["gpu.0.samples"] = f"12:{us()}:5"
    assert busy(inventory.look(at())) == {11: 0, 12: 5}


def test_no_newer_sample_means_that_nobody_was_busy(double, inventory, at, us):
    double["gpu.0.samples"] = f"1000:{us()}:55"
    assert busy(inventory.look(at())) == {1000: 55}
    assert busy(inventory.look(at(2))) == {1000: 0}  # NOT_FOUND: the sample was counted


def test_a_library_that_has_nothing_to_say_means_idle(double, inventory, at, us):
    double.update({"gpu.0.samples": f"1000:{us()}:55", "gpu.0.probe": 0})
    with pytest.raises(importlib.import_module("pynvml").NVMLError):
        raise_nvml_error_0(double)
    assert busy(inventory.look(at())) == {1000: 0}


def raise_nvml_error_0(double):
    pynvml = importlib.import_module("pynvml")
    pynvml.nvmlInit()
    try:
        pynvml.nvmlDeviceGetProcessUtilization(pynvml.nvmlDeviceGetHandleByIndex(0), 0)
    finally:
        pynvml.nvmlShutdown()


@pytest.mark.parametrize("code", [1, 2, 3, 4, 7, 13, 999])
def test_samples_that_cannot_be_had_are_unknown_and_not_zero(double, inventory, at, us, code):
    double.update({"gpu.0.samples": f"1000:{us()}:55", f"fail.{SAMPLES}.0": code})
    seen = inventory.look(at())
    assert seen.devices[0].processes == (ProcessUse(pid=1000, memory_mib=90, busy_percent=None),)
    del double[f"fail.{SAMPLES}.0"]
    assert busy(inventory.look(at(1))) == {1000: 55}  # and it was not counted as seen


def test_the_first_look_goes_back_one_second(double, inventory, at, us):
    double["gpu.0.processes"] = listed(p11=1, p12=1)
    double["gpu.0.samples"] = f"11:{us(-1)}:90,12:{us(-1) + 1}:80"
    assert busy(inventory.look(at())) == {11: 0, 12: 80}


def test_stale_samples_are_dropped_even_if_the_driver_returns_them(double, inventory, at, us):
    double.update({"gpu.0.samples": f"1000:{us(-0.5)}:90", "gpu.0.ring": 1})
    assert busy(inventory.look(at())) == {1000: 90}
    double["gpu.0.samples"] = f"1000:{us(-0.5)}:90,1000:{us(1)}:7"
    assert busy(inventory.look(at(2))) == {1000: 7}
    assert busy(inventory.look(at(4))) == {1000: 0}


def test_rubbish_samples_are_dropped(double, inventory, at, us):
    double["gpu.0.samples"] = ",".join(
        [f"0:{us()}:99", f"4711:{us()}:99", f"1000:{us()}:12", f"1000:{us()}:101", "1000:0:98"]
    )
    assert busy(inventory.look(at())) == {1000: 12}


def test_a_share_that_nobody_can_read_is_unknown_and_not_idle(double, inventory, at, us):
    double["gpu.0.samples"] = f"1000:{us()}:4294967295,1000:{us()}:0"
    assert busy(inventory.look(at())) == {1000: None}


def test_a_time_in_the_far_future_does_not_hide_later_samples(double, inventory, at, us):
    double["gpu.0.samples"] = f"1000:{2**64 - 1}:99,1000:{us(3600)}:98,0:{us(30)}:97,1000:{us()}:5"
    assert busy(inventory.look(at())) == {1000: 5}
    double["gpu.0.samples"] = f"1000:{us(1)}:6"
    assert busy(inventory.look(at(2))) == {1000: 6}


def test_a_clock_that_was_set_back_makes_nobody_idle(double, inventory, at, us):
    double["gpu.0.samples"] = f"1000:{us()}:50"
    inventory.look(at())
    double["gpu.0.samples"] = f"1000:{us(-3600)}:60"
    assert busy(inventory.look(at(-3600))) == {1000: 60}


def test_a_new_session_goes_back_one_second_again(double, inventory, at, us):
    double["gpu.0.samples"] = f"1000:{us(5)}:50"
    inventory.look(at(5))
    inventory.close()
    double["gpu.0.samples"] = f"1000:{us(7)}:60,1000:{us(50.5)}:70"
    assert busy(inventory.look(at(51))) == {1000: 70}


def test_every_gpu_has_a_newest_sample_of_its_own(double, inventory, at, us):
    double.update({"gpu.0.samples": f"1000:{us()}:50", "gpu.2.samples": f"1002:{us(-0.8)}:40"})
    inventory.look(at())
    double.update({"gpu.0.samples": f"1000:{us(1)}:5", "gpu.2.samples": f"1002:{us(-0.4)}:60"})
    seen = inventory.look(at(1))
    assert (busy(seen, 0), busy(seen, 2)) == ({1000: 5}, {1002: 60})


@pytest.mark.parametrize(("times", "share"), [(1, 30), (2, None)])
def test_samples_that_grow_meanwhile_are_asked_for_once_more(
    double, inventory, at, us, times, share
):
    double.update({"gpu.0.samples": f"1000:{us()}:30", "gpu.0.grows.samples": times})
    assert busy(inventory.look(at())) == {1000: share}
