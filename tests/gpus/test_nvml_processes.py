"""Who uses a GPU or an instance, and what is unknown of them, through the real binding."""

import time

import nvml_double
import pytest

from gpuspawner.domain.devices import HostId, ProcessUse, Trouble
from gpuspawner.gpus.nvml import NVMLInventory

COMPUTE = "nvmlDeviceGetComputeRunningProcesses_v3"
GRAPHICS = "nvmlDeviceGetGraphicsRunningProcesses_v3"
MPS = "nvmlDeviceGetMPSComputeRunningProcesses_v3"
SAMPLES = "nvmlDeviceGetProcessUtilization"
CODES = (*range(1, 31), 999)
MIB = nvml_double.MIB


def processes(seen, index=0):
    return seen.devices[index].processes


def memory(seen, index=0):
    return {item.pid: item.memory_mib for item in processes(seen, index)}


def busy(seen, index=0):
    return {item.pid: item.busy_percent for item in processes(seen, index)}


def listed(**sizes):
    """A list as the double has it: PIDs with MiB."""
    return ",".join(f"{pid[1:]}:{mib * MIB}" for pid, mib in sizes.items())


# ---- lists ----


def test_a_process_in_several_lists_is_one_with_the_most_memory(double, inventory, at):
    double["gpu.0.processes"] = listed(p11=100, p12=300)
    double["gpu.0.graphics"] = listed(p12=200, p11=150, p13=5)
    assert memory(inventory.look(at())) == {11: 150, 12: 300, 13: 5}


def test_a_process_twice_in_one_list_is_one(double, inventory, at):
    double["gpu.0.processes"] = f"11:{MIB},11:{3 * MIB},11:{2 * MIB}"
    assert memory(inventory.look(at())) == {11: 3}


def test_memory_is_known_if_one_list_tells_it(double, inventory, at):
    double["gpu.0.processes"] = f"11:-,12:{7 * MIB},13:-"
    double["gpu.0.graphics"] = f"11:{4 * MIB},12:-"
    assert memory(inventory.look(at())) == {11: 4, 12: 7, 13: None}


def test_memory_that_is_not_available_is_unknown_and_not_zero(double, inventory, at):
    double["gpu.0.processes"] = f"11:-,12:{MIB - 1},13:0"
    assert memory(inventory.look(at())) == {11: None, 12: 0, 13: 0}


def test_clients_of_mps_are_told_from_its_server(double, inventory, at):
    double["gpu.0.processes"] = listed(p50=60, p51=326)
    double["gpu.0.mps"] = listed(p51=326, p52=20)
    assert processes(inventory.look(at())) == (
        ProcessUse(pid=50, memory_mib=60, busy_percent=0),
        ProcessUse(pid=51, memory_mib=326, busy_percent=0, mps_client=True),
        ProcessUse(pid=52, memory_mib=20, busy_percent=0, mps_client=True),
    )


def test_a_driver_may_list_the_server_of_mps_only(double, inventory, at):
    double["gpu.0.processes"] = listed(p50=700)
    assert processes(inventory.look(at())) == (
        ProcessUse(pid=50, memory_mib=700, busy_percent=0, mps_client=False),
    )


def test_no_process_is_an_empty_list(double, inventory, at):
    double["gpu.0.processes"] = ""
    assert processes(inventory.look(at())) == ()
    assert double.calls(COMPUTE) == 1 + 4 * 2  # the other GPU and the instances in two steps


def test_an_unknown_list_is_not_an_empty_one(double, inventory, at):
    del double["gpu.0.processes"]
    double["gpu.0.graphics"] = listed(p11=100)
    seen = inventory.look(at())
    assert processes(seen) is None
    assert seen.devices[0].unavailable is None
    assert seen.devices[0].load.used_mib == 100
    assert processes(seen, 2) is not None


def test_lists_that_a_gpu_lacks_are_empty(double, inventory, at):
    del double["gpu.0.graphics"]
    del double["gpu.0.mps"]
    assert memory(inventory.look(at())) == {1000: 90}


def test_numbers_that_are_no_pids_are_dropped(double, inventory, at):
    double["gpu.0.processes"] = f"0:{MIB},4294967295:{MIB},4194305:{MIB},4194304:{MIB},1:{MIB}"
    double["gpu.0.mps"] = f"0:{MIB}"
    assert memory(inventory.look(at())) == {1: 1, 4194304: 1}


@pytest.mark.parametrize(("times", "found"), [(1, {11: 5, 1000: 90}), (2, None)])
@pytest.mark.parametrize("key", ["processes", "graphics", "mps"])
def test_a_list_that_grows_meanwhile_is_asked_for_once_more(
    double, inventory, at, key, times, found
):
    double["gpu.0.graphics"] = double["gpu.0.mps"] = listed(p11=5)
    double[f"gpu.0.grows.{key}"] = times
    seen = inventory.look(at())
    assert (processes(seen) and memory(seen)) == found
    assert seen.devices[0].unavailable is None
    assert memory(inventory.look(at(1))) == {11: 5, 1000: 90}


def test_an_old_driver_has_no_lists_that_we_can_read(old_double, at):
    inventory = NVMLInventory(HostId("host-a"), 60)
    seen = inventory.look(at())
    inventory.close()
    assert [device.processes for device in seen.devices] == [None] * 3
    assert [item.processes for item in seen.devices[1].instances] == [None] * 3
    assert all(device.unavailable is None for device in seen.devices)


# ---- MIG ----


def test_a_partitioned_gpu_lists_by_instance_and_knows_nobodys_share(double, inventory, at, us):
    double.update(
        {
            "gpu.1.samples": f"1001:{us()}:50",
            "gpu.1.mig.0.processes": listed(p61=10, p62=20),
            "gpu.1.mig.0.mps": listed(p62=20),
            "gpu.1.mig.2.processes": "",
        }
    )
    del double["gpu.1.mig.5.processes"]
    device = inventory.look(at()).devices[1]
    assert device.processes is None
    assert [item.processes for item in device.instances] == [
        (
            ProcessUse(pid=61, memory_mib=10, busy_percent=None),
            ProcessUse(pid=62, memory_mib=20, busy_percent=None, mps_client=True),
        ),
        (),
        None,
    ]
    assert double.calls(SAMPLES) == 2  # never asked of it


def test_a_gpu_whose_mode_is_unknown_does_not_speak_for_its_instances(double, inventory, at):
    before = inventory.look(at()).devices[1]
    double.update({"fail.nvmlDeviceGetMigMode.1": 999, "gpu.1.processes": ""})
    device = inventory.look(at(1)).devices[1]
    assert (device.partitioned, device.processes) == (None, None)
    assert device.instances == before.instances


def test_instances_that_could_not_be_listed_have_unknown_processes(double, inventory, at):
    inventory.look(at())
    double["fail.nvmlDeviceGetMigDeviceHandleByIndex.1.mig.2"] = 999
    instances = {item.uuid: item for item in inventory.look(at(1)).devices[1].instances}
    assert instances["MIG-GPU-1/3/0"].processes is None
    assert instances["MIG-a"].processes == (ProcessUse(pid=2000, memory_mib=10),)


# ---- failures ----


def test_the_processes_of_a_lost_gpu_are_unknown(double, inventory, at):
    inventory.look(at())
    double.update({"gpu.0.lost": 15, "gpu.1.lost": 15})
    lost = inventory.look(at(1)).devices
    assert [device.processes for device in lost[:2]] == [None, None]
    assert [item.processes for item in lost[1].instances] == [None] * 3


def test_the_processes_of_a_host_that_is_not_asked_are_unknown(double, inventory, at):
    inventory.look(at())
    double["fail.nvmlDeviceGetCount_v2"] = 999
    seen = inventory.look(at(1))
    assert [device.processes for device in seen.devices] == [None] * 3


@pytest.mark.proves("P5")
@pytest.mark.parametrize("symbol", [COMPUTE, GRAPHICS, MPS, SAMPLES])
def test_a_failing_call_is_never_a_false_zero(double, at, us, symbol):
    double.update(
        {
            "gpu.0.processes": listed(p11=100), "gpu.0.graphics": listed(p12=50),
            "gpu.0.mps": listed(p13=20),
            "gpu.0.samples": ",".join(f"{pid}:{us()}:{pid + 40}" for pid in (11, 12, 13)),
        }
    )  # fmt: skip
    whole = {11: (100, 51), 12: (50, 52), 13: (20, 53)}
    lacking = {COMPUTE: None, GRAPHICS: 12, MPS: 13}
    for code in CODES:
        double[f"fail.{symbol}.0"] = code
        inventory = NVMLInventory(HostId("host-a"), 60)
        seen = inventory.look(at())
        inventory.close()
        assert [memory(seen, 2), busy(seen, 2)] == [{1002: 92}, {1002: 0}], code
        assert all(item.processes for item in seen.devices[1].instances), code
        found = processes(seen)
        if code == 15:
            assert (found, seen.devices[0].unavailable.trouble) == (None, Trouble.LOST)
        elif symbol == SAMPLES:
            share = 0 if code == 6 else None
            assert {item.pid: (item.memory_mib, item.busy_percent) for item in found} == {
                pid: (mib, share) for pid, (mib, _) in whole.items()
            }, code
        elif code in (3, 13) and symbol != COMPUTE:
            rest = {pid: use for pid, use in whole.items() if pid != lacking[symbol]}
            assert {i.pid: (i.memory_mib, i.busy_percent) for i in found} == rest, code
        else:
            assert found is None, code


def test_many_processes_are_cheap(double, at, us):
    pids = range(1000, 1500)
    for index in range(8):
        double.update(nvml_double.gpu(index))
        double[f"gpu.{index}.processes"] = ",".join(f"{pid}:{MIB}" for pid in pids)
        double[f"gpu.{index}.samples"] = ",".join(f"{pid}:{us()}:50" for pid in pids)
    inventory = NVMLInventory(HostId("host-a"), 60)
    before = time.process_time()
    seen = inventory.look(at())
    spent = time.process_time() - before
    inventory.close()
    assert [len(device.processes) for device in seen.devices] == [500] * 8
    assert seen.devices[7].processes[-1] == ProcessUse(pid=1499, memory_mib=1, busy_percent=50)
    assert spent < 1, f"{spent:.3f} s of CPU time"  # some 0.06 s where nothing else runs
