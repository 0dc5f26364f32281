"""What a look at healthy and half-healthy GPUs says, through the real binding."""

import json
import subprocess
import sys

import nvml_double
import pytest

from gpuspawner.domain.devices import HostId, Instance, Load, ProcessUse, Trouble
from gpuspawner.gpus.nvml import NVMLInventory


def by_uuid(seen):
    return {device.uuid: device for device in seen.devices}


def test_a_look_reads_every_gpu(inventory, at):
    seen = inventory.look(at())

    assert (seen.host_id, seen.observed_at, seen.simulated) == ("host-a", at(), False)
    assert (seen.trouble, seen.driver_version) == (None, "580.95.05")
    assert [(d.uuid, d.index, d.partitioned) for d in seen.devices] == [
        ("GPU-0", 0, False),
        ("GPU-1", 1, True),
        ("GPU-2", 2, False),  # MIG is not supported: off
    ]
    first = seen.devices[0]
    assert (first.model, first.memory_mib) == ("NVIDIA A100-SXM4-40GB", 40960)
    assert first.load == Load(  # used without the driver's 600 MiB of reserve
        used_mib=100,
        reserved_mib=600,
        busy_percent=10,
        temperature_c=40,
        power_w=60.5,
        power_limit_w=400.0,
    )
    assert first.processes == (ProcessUse(pid=1000, memory_mib=90, busy_percent=0),)
    assert all(device.unavailable is None for device in seen.devices)


def test_instances_are_found_behind_holes_with_both_kinds_of_uuid(inventory, at):
    device = by_uuid(inventory.look(at()))["GPU-1"]

    assert device.instances == tuple(
        Instance(
            uuid=uuid, profile="2g.10gb", memory_mib=9856, used_mib=20 + slot, compute_slices=2,
            processes=(ProcessUse(pid=2000 + slot, memory_mib=10 + slot),),
        )
        for slot, uuid in ((0, "MIG-a"), (2, "MIG-GPU-1/3/0"), (5, "MIG-c"))
    )  # fmt: skip
    assert device.load.busy_percent is None
    assert device.load.temperature_c == 41


def test_utilisation_of_a_partitioned_gpu_is_unknown_even_if_a_driver_tells_one(
    double, inventory, at
):
    device = by_uuid(inventory.look(at()))["GPU-1"]
    assert device.load.busy_percent is None
    assert double.calls("nvmlDeviceGetUtilizationRates") == 2  # the other two


@pytest.mark.parametrize(
    ("name", "size", "profile"),
    [
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", {}, "1g.10gb+me"),
        ("NVIDIA X1 MIG 5g.77gb.new", {}, "5g.77gb.new"),
        ("NVIDIA X1", {}, "2g.10gb"),
        ("NVIDIA X1", {"ci": 1}, "1c.2g.10gb"),
        ("NVIDIA X1", {"gi": 1, "ci": 1, "memory_mb": 4864}, "1g.5gb"),
        ("NVIDIA X1", {"gi": 3, "ci": 3, "memory_mb": 20096}, "3g.20gb"),
        ("NVIDIA X1", {"gi": 7, "ci": 7, "memory_mb": 40192}, "7g.40gb"),
    ],
)
def test_a_profile_comes_from_the_name_or_from_the_size(double, inventory, at, name, size, profile):
    double.update(nvml_double.instance(1, 0, "MIG-a", name=name, **size))
    assert by_uuid(inventory.look(at()))["GPU-1"].instances[0].profile == profile


@pytest.mark.parametrize(
    ("total_mib", "memory_mb", "profile"),
    [(143771, 16896, "1g.18gb"), (143771, 71424, "1g.71gb"), (97871, 11264, "1g.12gb")],
)
def test_sizes_of_boards_that_are_no_round_number(
    double, inventory, at, total_mib, memory_mb, profile
):
    double["gpu.1.total"] = total_mib * nvml_double.MIB
    double.update(nvml_double.instance(1, 0, "MIG-a", name="X", gi=1, ci=1, memory_mb=memory_mb))
    assert by_uuid(inventory.look(at()))["GPU-1"].instances[0].profile == profile


def test_a_new_layout_in_the_same_slots_is_seen_at_the_next_look(double, inventory, at):
    inventory.look(at())
    for key in [key for key in double if key.startswith("gpu.1.mig.")]:
        del double[key]
    size = {"name": "X MIG 3g.20gb", "gi": 3, "ci": 3, "memory_mb": 20096, "total": 20096 * 2**20}
    double.update(nvml_double.instance(1, 2, "MIG-new", **size))

    (only,) = by_uuid(inventory.look(at(1)))["GPU-1"].instances

    assert (only.uuid, only.profile, only.memory_mib, only.compute_slices) == (
        "MIG-new", "3g.20gb", 20096, 3,
    )  # fmt: skip


def test_an_old_driver_is_read_by_the_older_calls(old_double, at):
    inventory = NVMLInventory(HostId("host-a"), 60)
    device = inventory.look(at()).devices[0]
    inventory.close()

    assert device.memory_mib == 40960
    assert device.load.used_mib == 700  # the older call counts the driver's 600 MiB in
    assert device.load.reserved_mib is None
    assert device.load.temperature_c == 40
    assert device.unavailable is None  # no word on row remapping is no sickness


def test_what_wsl_does_not_know_is_unknown_and_not_lost(double, inventory, at):
    double["unsupported"] = 999
    for key in ("util", "power", "limit", "remapped", "field.230", "field.31", "mig"):
        del double[f"gpu.0.{key}"]

    device = by_uuid(inventory.look(at()))["GPU-0"]

    assert device.load == Load(used_mib=100, reserved_mib=600, temperature_c=40)
    assert device.partitioned is None  # and so it is not handed out as a whole
    assert device.unavailable is None


@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("used", "used_mib"),
        ("reserved", "reserved_mib"),
        ("power", "power_w"),
        ("temp", "temperature_c"),
        ("limit", "power_limit_w"),
    ],
)
def test_a_number_that_stands_for_not_available_is_unknown(double, inventory, at, key, field):
    double[f"gpu.0.{key}"] = 2**64 - 1 if key in ("used", "reserved") else 2**32 - 1
    double["fail.nvmlDeviceGetTemperatureV.0"] = 13  # the older call has unsigned degrees
    assert getattr(by_uuid(inventory.look(at()))["GPU-0"].load, field) is None


def test_rubbish_readings_are_unknown(double, inventory, at):
    double.update({"gpu.0.util": 4711, "gpu.0.total": 0})
    device = by_uuid(inventory.look(at()))["GPU-0"]
    assert device.load.busy_percent is None
    assert device.memory_mib is None


def test_a_name_that_is_no_text_is_an_unknown_name(double, inventory, at):
    raw = double.state.read_bytes()
    name = b"gpu.0.name=NVIDIA A100-SXM4-40GB"
    double.state.write_bytes(raw.replace(name, b"gpu.0.name=\xff\xfe"))
    seen = inventory.look(at())
    assert [device.model for device in seen.devices] == [
        "",
        "NVIDIA A100-SXM4-40GB",
        "NVIDIA A100-SXM4-40GB",
    ]
    assert seen.devices[0].unavailable is None


def test_slow_readings_are_taken_every_thirty_seconds(double, inventory, at):
    for seconds in (0, 1, 29.9):
        inventory.look(at(seconds))
    assert double.calls("nvmlDeviceGetEnforcedPowerLimit") == 3  # one for each GPU
    double["gpu.0.limit"] = 300000
    assert inventory.look(at(29.9)).devices[0].load.power_limit_w == 400.0
    assert inventory.look(at(30)).devices[0].load.power_limit_w == 300.0
    assert double.calls("nvmlDeviceGetEnforcedPowerLimit") == 6


def test_a_clock_that_was_set_back_does_not_stop_slow_readings(double, inventory, at):
    inventory.look(at())
    double["gpu.0.limit"] = 300000
    assert inventory.look(at(-3600)).devices[0].load.power_limit_w == 300.0


def test_full_gpu_handles_are_kept_and_instances_asked_anew(double, inventory, at):
    for seconds in range(5):
        inventory.look(at(seconds))
    assert double.calls("nvmlDeviceGetHandleByIndex_v2") == 3
    assert double.calls("nvmlDeviceGetMigDeviceHandleByIndex") == 5 * 7
    assert double.calls("nvmlInitWithFlags") == 1


def test_size_and_profile_of_a_known_instance_are_not_asked_again(double, inventory, at):
    for seconds in range(5):
        inventory.look(at(seconds))
    assert double.calls("nvmlDeviceGetAttributes_v2") == 3


@pytest.mark.parametrize(
    ("lines", "detail", "cleared_by"),
    [
        ({"gpu.0.field.230": 1}, "The driver asks for a reset of the GPU.", "a reset"),
        ({"gpu.0.field.230": 2}, "The driver asks for a reboot of the host.", "a reboot"),
        ({"gpu.0.field.230": 99}, "The driver asks for recovery action 99.", "a reset"),
        ({"gpu.0.remapped": "0,1,1,0"}, "A failing memory row waits for its remapping.", "a reset"),
        ({"gpu.0.remapped": "0,1,0,1"}, "A failing memory row could not be remapped.", "a repl"),
        ({"gpu.0.field.31": 1}, "A failing memory page waits for its retirement.", "a reset"),
        ({"gpu.0.field.31": 1, "gpu.0.field.230.code": 3}, "A failing memory page waits", "a res"),
        ({"fail.nvmlDeviceGetPowerUsage.0": 16}, "The GPU must be reset", "a reset of the GPU"),
    ],
)
def test_a_sick_gpu_says_so_and_what_clears_it(double, inventory, at, lines, detail, cleared_by):
    double.update(lines)
    seen = by_uuid(inventory.look(at()))
    sick = seen["GPU-0"].unavailable
    assert sick.trouble is Trouble.SICK
    assert sick.detail.startswith(detail)
    assert sick.cleared_by.startswith(cleared_by)
    assert seen["GPU-0"].load.used_mib == 100  # it still answers
    assert seen["GPU-1"].unavailable is None
    for key in lines:
        del double[key]
    assert by_uuid(inventory.look(at(1)))["GPU-0"].unavailable is None


def test_remapped_rows_that_are_history_are_no_sickness(double, inventory, at):
    double["gpu.0.remapped"] = "3,2,0,0"
    assert inventory.look(at()).devices[0].unavailable is None


def test_importing_and_making_an_inventory_does_not_load_the_binding():
    script = (
        "import sys, gpuspawner.gpus.nvml, gpuspawner.gpus.factory as f;"
        "f.open_inventory('h', None, None).close();"
        "print('pynvml' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False\n"


def test_a_process_of_its_own_finds_the_library_by_its_name(double):
    script = (
        "import json; from datetime import UTC, datetime\n"
        "from gpuspawner.gpus.nvml import NVMLInventory\n"
        "i = NVMLInventory('h', 60); seen = i.look(datetime.now(UTC)); i.close()\n"
        "print(json.dumps([seen.trouble, [(d.uuid, d.load.used_mib) for d in seen.devices]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=double.environment(), capture_output=True, text=True,
        timeout=60, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == [None, [["GPU-0", 100], ["GPU-1", 101], ["GPU-2", 102]]]
