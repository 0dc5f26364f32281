"""Every call with every code: only that reading, or that GPU, becomes unknown."""

import importlib
import re
from dataclasses import fields, replace
from pathlib import Path

import nvml_double
import pytest

import gpuspawner.gpus
from gpuspawner.domain.devices import HostId, HostInventory, Load, ProcessUse, Trouble
from gpuspawner.gpus.nvml import NVMLInventory

CODES = (*range(1, 31), 999)
LOST, RESET, OLDER, HOLE = 15, 16, (13, 25), (2, 6)
TARGET = {"0": "GPU-0", "1": "GPU-1", "1.mig.2": "GPU-1"}


def used_functions():
    """The calls that the product makes, read from its source: a new one needs a row here."""
    package = Path(gpuspawner.gpus.__file__).parent
    text = "".join(path.read_text(encoding="utf-8") for path in package.glob("*.py"))
    return set(re.findall(r'"(nvml[A-Z]\w*)"', text))


def flat(device):
    seen = {item.name: getattr(device, item.name) for item in fields(device)}
    load = seen.pop("load")
    return seen | {item.name: getattr(load, item.name) for item in fields(Load)}


def changes(device, before):
    old = flat(before)
    return {key: value for key, value in flat(device).items() if value != old[key]}


def unknown(*names):
    return lambda code, before: dict.fromkeys(names)


def memory_v2(code, before):
    if code in OLDER:  # version 1 counts the driver's reserve in
        return {"used_mib": before.load.used_mib + 600, "reserved_mib": None}
    return {"memory_mib": None, "used_mib": None, "reserved_mib": None}


def mig_mode(code, before):
    if code == 3:  # the one code that means "off"
        found = {"partitioned": False, "instances": ()}
        if before.partitioned:
            found["processes"] = (ProcessUse(pid=1001, memory_mib=91),)
        return found
    return {"partitioned": None}


def instances_unread(code, before):
    return {"instances": (), "unavailable": Trouble.UNKNOWN}


def slots(code, before):
    return {"instances": ()} if code in HOLE else instances_unread(code, before)


def instance_uuid(code, before):
    rest = tuple(item for item in before.instances if item.uuid != "MIG-GPU-1/3/0")
    return {"instances": rest} | ({} if code in HOLE else {"unavailable": Trouble.UNKNOWN})


def of_instance(**unknown_fields):
    def expected(code, before):
        changed = [
            replace(item, **unknown_fields) if item.uuid == "MIG-GPU-1/3/0" else item
            for item in before.instances
        ]
        return {"instances": tuple(changed)} if unknown_fields else {}

    return expected


def instance_memory(code, before):
    # The size is known from the attributes as well; an instance has no reserve.
    return {} if code in OLDER else of_instance(used_mib=None)(code, before)


def no_list(code, before):
    return {"processes": None}


def no_further_list(code, before):
    return {} if code in (3, 13) else {"processes": None}


def nobody_sampled(code, before):
    if code == 6:  # nobody was busy
        return {}
    return {"processes": tuple(replace(item, busy_percent=None) for item in before.processes)}


def instance_list(code, before):
    return of_instance(processes=None)(code, before)


def instance_further_list(code, before):
    return {} if code in (3, 13) else instance_list(code, before)


def nothing(code, before):
    return {}


def temperature(code, before):
    return {} if code in (3, *OLDER) else {"temperature_c": None}


# Function of the binding -> rows of (symbol in the library, where it fails, what changes there).
DEVICE_ROWS = {
    "nvmlDeviceGetName": [
        ("nvmlDeviceGetName", "0", lambda code, before: {"model": ""}),
        ("nvmlDeviceGetName", "1.mig.2", nothing),  # the size gives the same profile
    ],
    "nvmlDeviceGetMemoryInfo": [
        ("nvmlDeviceGetMemoryInfo_v2", "0", memory_v2),
        ("nvmlDeviceGetMemoryInfo", "0", nothing),  # only asked when the other is missing
        ("nvmlDeviceGetMemoryInfo_v2", "1.mig.2", instance_memory),
    ],
    "nvmlDeviceGetUtilizationRates": [
        ("nvmlDeviceGetUtilizationRates", "0", unknown("busy_percent")),
    ],
    "nvmlDeviceGetTemperatureV": [("nvmlDeviceGetTemperatureV", "0", temperature)],
    "nvmlDeviceGetTemperature": [("nvmlDeviceGetTemperature", "0", nothing)],
    "nvmlDeviceGetPowerUsage": [("nvmlDeviceGetPowerUsage", "0", unknown("power_w"))],
    "nvmlDeviceGetEnforcedPowerLimit": [
        ("nvmlDeviceGetEnforcedPowerLimit", "0", unknown("power_limit_w")),
    ],
    "nvmlDeviceGetRemappedRows": [("nvmlDeviceGetRemappedRows", "0", nothing)],
    "nvmlDeviceGetFieldValues": [("nvmlDeviceGetFieldValues", "0", nothing)],
    "nvmlDeviceGetMigMode": [
        ("nvmlDeviceGetMigMode", "0", mig_mode),
        ("nvmlDeviceGetMigMode", "1", mig_mode),
    ],
    "nvmlDeviceGetComputeRunningProcesses": [
        ("nvmlDeviceGetComputeRunningProcesses_v3", "0", no_list),
        ("nvmlDeviceGetComputeRunningProcesses_v3", "1.mig.2", instance_list),
    ],
    "nvmlDeviceGetGraphicsRunningProcesses": [
        ("nvmlDeviceGetGraphicsRunningProcesses_v3", "0", no_further_list),
        ("nvmlDeviceGetGraphicsRunningProcesses_v3", "1.mig.2", instance_further_list),
    ],
    "nvmlDeviceGetMPSComputeRunningProcesses": [
        ("nvmlDeviceGetMPSComputeRunningProcesses_v3", "0", no_further_list),
        ("nvmlDeviceGetMPSComputeRunningProcesses_v3", "1.mig.2", instance_further_list),
    ],
    "nvmlDeviceGetProcessUtilization": [
        ("nvmlDeviceGetProcessUtilization", "0", nobody_sampled),
    ],
    "nvmlDeviceGetMaxMigDeviceCount": [("nvmlDeviceGetMaxMigDeviceCount", "1", instances_unread)],
    "nvmlDeviceGetMigDeviceHandleByIndex": [
        ("nvmlDeviceGetMigDeviceHandleByIndex", "1", slots),
        ("nvmlDeviceGetMigDeviceHandleByIndex", "1.mig.2", instance_uuid),
    ],
    "nvmlDeviceGetUUID": [("nvmlDeviceGetUUID", "1.mig.2", instance_uuid)],
    "nvmlDeviceGetAttributes_v2": [
        ("nvmlDeviceGetAttributes_v2", "1.mig.2", of_instance(compute_slices=None)),
    ],
}  # fmt: skip
HOST_FUNCTIONS = {
    "nvmlInit": "nvmlInitWithFlags",
    "nvmlShutdown": "nvmlShutdown",
    "nvmlSystemGetDriverVersion": "nvmlSystemGetDriverVersion",
    "nvmlDeviceGetCount": "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex": "nvmlDeviceGetHandleByIndex_v2",
}
GPM_FUNCTIONS = {  # whose codes cost no reading but one: test_nvml_gpm_errors.py
    "nvmlDeviceGetGpuInstanceId", "nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc",
    "nvmlGpmSampleFree", "nvmlGpmMigSampleGet", "nvmlGpmMetricsGet",
}  # fmt: skip
ROWS = [row for rows in DEVICE_ROWS.values() for row in rows]


def fresh_look(at):
    inventory = NVMLInventory(HostId("host-a"), 60)
    try:
        return inventory.look(at())
    finally:
        inventory.close()


def test_every_call_that_the_product_makes_has_a_row():
    assert used_functions() == set(DEVICE_ROWS) | set(HOST_FUNCTIONS) | GPM_FUNCTIONS


@pytest.mark.proves("P5")
@pytest.mark.parametrize(
    ("symbol", "where", "expect"), ROWS, ids=[f"{symbol}-{where}" for symbol, where, _ in ROWS]
)
def test_a_failing_call_costs_one_reading(double, at, symbol, where, expect):
    healthy = {device.uuid: device for device in fresh_look(at).devices}
    target = TARGET[where]
    reached = double.calls(symbol) > 0
    for code in CODES:
        double[f"fail.{symbol}.{where}"] = code
        seen = fresh_look(at)
        assert seen.trouble is None, code
        devices = {device.uuid: device for device in seen.devices}
        assert devices.keys() == healthy.keys(), code
        for uuid in healthy.keys() - {target}:
            assert devices[uuid] == healthy[uuid], (code, uuid)
        changed = changes(devices[target], healthy[target])
        why = changed.pop("unavailable", None)
        if reached and code == LOST:
            assert why.trouble is Trouble.LOST
            assert (devices[target].load, devices[target].processes) == (Load(), None)
            continue
        expected = expect(code, healthy[target])
        verdict = expected.pop("unavailable", None)
        if reached and code == RESET:
            verdict = Trouble.SICK
        assert (why and why.trouble) == verdict, code
        old = flat(healthy[target])
        expected = {key: value for key, value in expected.items() if value != old[key]}
        assert changed == expected, code


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("symbol", ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID"])
def test_a_gpu_without_a_name_shifts_nobody(double, at, symbol, code):
    healthy = fresh_look(at).devices
    double[f"fail.{symbol}.0"] = code
    seen = fresh_look(at)
    assert seen.trouble is None
    assert seen.devices == healthy[1:]


@pytest.mark.parametrize("code", CODES)
def test_an_unknown_driver_version_is_none(double, at, code):
    healthy = fresh_look(at)
    double["fail.nvmlSystemGetDriverVersion"] = code
    seen = fresh_look(at)
    assert (seen.driver_version, seen.devices) == (None, healthy.devices)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("symbol", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2"])
def test_a_host_that_cannot_be_asked_is_in_trouble(double, at, symbol, code):
    double[f"fail.{symbol}"] = code
    seen = fresh_look(at)
    assert isinstance(seen, HostInventory)
    assert f"(NVML code {code})" in seen.trouble
    assert seen.devices == ()


@pytest.mark.parametrize("code", CODES)
def test_a_failing_shutdown_is_nobodys_trouble(double, at, code):
    double["fail.nvmlShutdown"] = code
    assert fresh_look(at) == fresh_look(at)


@pytest.mark.parametrize("function", sorted(DEVICE_ROWS))
@pytest.mark.parametrize("error", ["NVMLError(0)", "mismatch", "missing"])
def test_oddities_of_the_binding_are_unknown_readings(double, at, monkeypatch, function, error):
    pynvml = importlib.import_module("pynvml")

    def fail(*_):
        if error == "mismatch":
            raise pynvml.NVMLLibraryMismatchError("versions")
        raise pynvml.NVMLError(0)

    if error == "missing":
        monkeypatch.delattr(pynvml, function)
    else:
        monkeypatch.setattr(pynvml, function, fail)
    seen = fresh_look(at)
    assert seen.trouble is None
    assert len(seen.devices) == (0 if function == "nvmlDeviceGetUUID" else 3)
    assert not any(
        device.unavailable and device.unavailable.trouble is not Trouble.UNKNOWN
        for device in seen.devices
    )


@pytest.mark.parametrize("code", [code for code in CODES if code not in (LOST, RESET)])
def test_readings_are_unknown_when_the_older_calls_fail_too(double, at, code):
    double.update(
        {
            "fail.nvmlDeviceGetMemoryInfo_v2.0": 25,
            "fail.nvmlDeviceGetMemoryInfo.0": code,
            "fail.nvmlDeviceGetTemperatureV.0": 13,
            "fail.nvmlDeviceGetTemperature.0": code,
        }
    )
    device = fresh_look(at).devices[0]
    assert (device.memory_mib, device.load.used_mib, device.load.temperature_c) == (None,) * 3
    assert device.load.busy_percent == 10
    assert device.unavailable is None


def test_all_optional_readings_missing_leave_a_usable_gpu(double, at):
    for name in ("UtilizationRates", "TemperatureV", "Temperature", "PowerUsage",
                 "EnforcedPowerLimit", "RemappedRows", "FieldValues"):  # fmt: skip
        double[f"fail.nvmlDeviceGet{name}"] = 3
    device = fresh_look(at).devices[0]
    assert device.load == Load(used_mib=100, reserved_mib=600)
    assert (device.memory_mib, device.unavailable) == (40960, None)


def test_the_double_counts_as_the_product_calls(double, at):
    fresh_look(at)
    assert double.calls("nvmlDeviceGetCount_v2") == 1
    assert nvml_double.SONAME == "libnvidia-ml.so.1"
