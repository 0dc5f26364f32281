"""GPUs that go away and come back, and hosts that cannot be asked at all."""

import importlib
import sys

import nvml_double
import pytest

from gpuspawner.domain.devices import HostId, Load, Trouble
from gpuspawner.gpus.nvml import NVMLInventory

INIT = "nvmlInitWithFlags"


def troubles(seen):
    return {d.uuid: d.unavailable and d.unavailable.trouble for d in seen.devices}


@pytest.mark.parametrize("code", [15, 999])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_gpu_lost_in_the_middle_stays_in_the_list_and_spoils_nobody(
    double, inventory, at, index, code
):
    before = inventory.look(at()).devices
    double[f"gpu.{index}.lost"] = code

    after = inventory.look(at(1)).devices

    assert [device.uuid for device in after] == ["GPU-0", "GPU-1", "GPU-2"]
    for old, new in zip(before, after, strict=True):
        if old.index != index:
            assert new == old
            continue
        assert new.unavailable.trouble is Trouble.LOST
        assert str(code) in new.unavailable.detail
        assert new.unavailable.cleared_by
        assert (new.model, new.memory_mib) == (old.model, old.memory_mib)
        assert new.load == Load()
        assert [item.uuid for item in new.instances] == [item.uuid for item in old.instances]
        assert all(item.used_mib is None for item in new.instances)


def test_a_gpu_lost_in_the_middle_may_answer_again(double, inventory, at):
    before = inventory.look(at()).devices
    double["gpu.1.lost"] = 15
    inventory.look(at(1))
    del double["gpu.1.lost"]
    assert inventory.look(at(2)).devices == before


@pytest.mark.parametrize("code", [15, 999])
def test_a_gpu_lost_at_lookup_stays_in_the_list(double, inventory, at, code):
    before = inventory.look(at()).devices
    double["gpu.1.lost"] = code
    inventory.close()  # the next session has to look every GPU up again

    after = inventory.look(at(1))

    assert troubles(after) == {"GPU-0": None, "GPU-1": Trouble.LOST, "GPU-2": None}
    assert (after.devices[0], after.devices[2]) == (before[0], before[2])
    del double["gpu.1.lost"]
    assert inventory.look(at(2)).devices == before  # looked up again without a new session


def test_a_gpu_that_left_the_bus_is_lost_although_another_took_its_index(double, inventory, at):
    inventory.look(at())
    double.replace(
        {"driver": "580.95.05", **nvml_double.gpu(0), **nvml_double.gpu(1, uuid="GPU-2", mig=0)}
    )
    inventory.close()

    seen = inventory.look(at(1))

    assert troubles(seen) == {"GPU-0": None, "GPU-1": Trouble.LOST, "GPU-2": None}
    assert {device.uuid: device.index for device in seen.devices}["GPU-2"] == 1
    inventory.look(at(61))
    assert double.calls(INIT) == 3  # it may be back in a new session


def test_a_gpu_lost_before_the_first_look_is_no_device_and_shifts_nobody(double, inventory, at):
    double["gpu.0.lost"] = 15
    seen = inventory.look(at())
    assert seen.trouble is None
    assert [(device.uuid, device.index) for device in seen.devices] == [("GPU-1", 1), ("GPU-2", 2)]
    del double["gpu.0.lost"]
    assert [device.uuid for device in inventory.look(at(1)).devices] == ["GPU-0", "GPU-1", "GPU-2"]


def test_a_gpu_that_cannot_be_looked_up_is_logged_once(double, inventory, at, caplog):
    double["gpu.0.lookup"] = 4
    for seconds in range(3):
        inventory.look(at(seconds))
    assert [record.getMessage() for record in caplog.records] == [
        "GPU at index 0 cannot be looked up (NVML code 4)"
    ]


def test_a_refused_handle_is_unknown_and_not_lost(double, inventory, at):
    inventory.look(at())
    double["gpu.2.lookup"] = 4
    inventory.close()

    seen = inventory.look(at(1))

    assert troubles(seen) == {"GPU-0": None, "GPU-1": None, "GPU-2": Trouble.UNKNOWN}
    assert "access" in seen.devices[2].unavailable.cleared_by
    inventory.look(at(61))
    assert double.calls(INIT) == 2  # a new session gives nobody access


@pytest.mark.parametrize(
    ("code", "trouble", "new_session"),
    [
        (1, Trouble.UNKNOWN, True),
        (2, Trouble.UNKNOWN, True),  # handles of another session
        (4, Trouble.UNKNOWN, False),
        (16, Trouble.SICK, True),
        (18, Trouble.UNKNOWN, True),
    ],
)
def test_a_gpu_that_answers_nothing(double, inventory, at, code, trouble, new_session):
    inventory.look(at())
    double["gpu.0.lost"] = code
    assert troubles(inventory.look(at(1)))["GPU-0"] is trouble
    inventory.look(at(60))
    assert double.calls(INIT) == 1 + new_session


@pytest.mark.parametrize(
    "line",
    ["fail.nvmlDeviceGetPowerUsage.0", "gpu.0.field.230.code", "fail.nvmlDeviceGetUUID.1.mig.2"],
)
def test_one_call_that_says_lost_is_enough(double, inventory, at, line):
    inventory.look(at())
    double[line] = 15
    seen = troubles(inventory.look(at(1)))
    assert sorted(filter(None, seen.values())) == [Trouble.LOST]
    inventory.look(at(60))
    assert double.calls(INIT) == 2


def test_new_sessions_come_ever_more_rarely_and_at_most_once_a_minute(double, inventory, at):
    opened = {}
    for seconds in range(0, 2000, 5):
        if seconds == 10:
            double["gpu.1.lost"] = 15
        inventory.look(at(seconds))
        opened.setdefault(double.calls(INIT), seconds)
    assert list(opened.values()) == [0, 60, 180, 420, 900, 1380, 1860]
    assert double.calls("nvmlShutdown") == 6


def test_the_ladder_starts_again_after_all_was_well(double, inventory, at):
    double["gpu.1.lost"] = 15
    for seconds in (0, 60, 180):
        inventory.look(at(seconds))
    del double["gpu.1.lost"]
    inventory.look(at(420))
    opened = double.calls(INIT)
    inventory.look(at(421))
    double["gpu.0.lost"] = 15
    for seconds in (422, 479, 480):
        inventory.look(at(seconds))
    assert double.calls(INIT) == opened + 1


def test_a_clock_that_was_set_back_does_not_stop_the_ladder(double, inventory, at):
    double["init"] = 9
    inventory.look(at())
    del double["init"]
    assert inventory.look(at(-86400)).trouble is None


@pytest.mark.parametrize(
    ("code", "words", "restart"),
    [
        (4, "run it as root", False),
        (9, "kernel driver is not loaded", False),
        (12, "libnvidia-ml.so.1 is not installed", False),
        (18, "restart the agent", True),
        (999, "kernel's log", False),
    ],
)
def test_a_host_that_cannot_be_asked_says_what_to_do(double, inventory, at, code, words, restart):
    before = inventory.look(at())
    double["init"] = code
    inventory.close()

    seen = inventory.look(at(1))

    assert words in seen.trouble
    assert f"NVML code {code}" in seen.trouble
    assert set(troubles(seen).values()) == {Trouble.UNKNOWN}
    assert [d.uuid for d in seen.devices] == [d.uuid for d in before.devices]
    assert {d.load for d in seen.devices} == {Load()}
    assert inventory.needs_restart is restart
    assert inventory.look(at(2)).trouble == seen.trouble
    assert double.calls(INIT) == 2  # not tried again within the minute
    del double["init"]
    healed = inventory.look(at(61))
    assert (healed.trouble, healed.devices) == (None, before.devices)
    assert inventory.needs_restart is False


def test_a_driver_changed_under_a_running_process_needs_a_restart(double, inventory, at):
    inventory.look(at())
    double.update({f"gpu.{index}.lost": 18 for index in range(3)} | {"init": 18})
    assert set(troubles(inventory.look(at(1))).values()) == {Trouble.UNKNOWN}
    seen = inventory.look(at(60))
    assert "restart the agent" in seen.trouble
    assert inventory.needs_restart is True


def test_a_host_that_does_not_count_its_gpus_is_asked_again(double, inventory, at):
    before = inventory.look(at()).devices
    double["fail.nvmlDeviceGetCount_v2"] = 999
    seen = inventory.look(at(1))
    assert "does not count" in seen.trouble
    assert set(troubles(seen).values()) == {Trouble.UNKNOWN}
    del double["fail.nvmlDeviceGetCount_v2"]
    healed = inventory.look(at(2))
    assert (healed.trouble, healed.devices) == (None, before)
    inventory.look(at(70))
    assert double.calls(INIT) == 1


def test_what_was_lost_before_the_trouble_is_lost_after_it(double, inventory, at):
    inventory.look(at())
    double["gpu.1.lost"] = 15
    inventory.look(at(1))
    double["init"] = 9
    inventory.close()
    assert troubles(inventory.look(at(2)))["GPU-1"] is Trouble.UNKNOWN
    del double["init"]
    assert troubles(inventory.look(at(70)))["GPU-1"] is Trouble.LOST


def test_no_library_on_the_host(monkeypatch, at):
    pynvml = importlib.import_module("pynvml")

    def no_library(name):
        raise OSError(name)

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", no_library)
    seen = NVMLInventory(HostId("host-a")).look(at())
    assert "NVML code 12" in seen.trouble
    assert (seen.devices, seen.driver_version) == ((), None)


def test_no_binding_on_the_host(monkeypatch, at):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    seen = NVMLInventory(HostId("host-a")).look(at())
    assert "nvidia-ml-py" in seen.trouble


def test_close_gives_the_gpus_free_and_the_next_look_takes_them_again(double, inventory, at):
    before = inventory.look(at()).devices
    inventory.close()
    inventory.close()
    assert double.calls("nvmlShutdown") == 1
    assert inventory.look(at(1)).devices == before
    assert double.calls(INIT) == 2


def test_instances_that_could_not_be_listed_are_kept(double, inventory, at):
    before = inventory.look(at()).devices[1].instances
    double["fail.nvmlDeviceGetMigDeviceHandleByIndex.1.mig.2"] = 999

    device = inventory.look(at(1)).devices[1]

    assert {item.uuid for item in device.instances} == {item.uuid for item in before}
    assert {item.uuid: item.used_mib for item in device.instances}["MIG-GPU-1/3/0"] is None
    assert device.unavailable.trouble is Trouble.UNKNOWN
    del double["fail.nvmlDeviceGetMigDeviceHandleByIndex.1.mig.2"]
    assert inventory.look(at(2)).devices[1].instances == before


@pytest.mark.proves("P5")
def test_an_unknown_mode_forgets_no_instance(double, inventory, at):
    before = inventory.look(at()).devices[1].instances
    double["fail.nvmlDeviceGetMigMode.1"] = 999
    device = inventory.look(at(1)).devices[1]
    assert (device.partitioned, device.instances) == (None, before)


def test_two_indexes_of_one_gpu_are_one_device(double, inventory, at):
    double["gpu.2.uuid"] = "GPU-0"
    assert [device.uuid for device in inventory.look(at()).devices] == ["GPU-0", "GPU-1"]
