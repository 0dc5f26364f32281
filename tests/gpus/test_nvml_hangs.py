"""Calls that do not come back: one GPU's hang is its own, and a look returns in time."""

import subprocess
import sys
import threading
import time

import nvml_double
import pytest

from gpuspawner.domain.devices import HostId, Load, Trouble
from gpuspawner.gpus.nvml import NVMLInventory
from gpuspawner.gpus.nvml_threads import Worker

SECONDS = 1.0  # the deadline of these looks; only the ones that first meet a hang wait for it
LONG = 600
POWER = "nvmlDeviceGetPowerUsage"
INIT, SHUTDOWN, COUNT = "nvmlInitWithFlags", "nvmlShutdown", "nvmlDeviceGetCount_v2"
LOOKUP = "nvmlDeviceGetHandleByIndex_v2"


@pytest.fixture
def hurried(double):
    made = NVMLInventory(HostId("host-a"), SECONDS)
    yield made
    made.close()


def troubles(seen):
    return {d.uuid: d.unavailable and d.unavailable.trouble for d in seen.devices}


ONE_UNKNOWN = {"GPU-0": Trouble.UNKNOWN, "GPU-1": None, "GPU-2": None}


# ---- one GPU ----


def test_a_gpu_that_hangs_delays_no_other(double, hurried, at):
    before = hurried.look(at()).devices
    double[f"hang.{POWER}.0"] = LONG
    started = time.monotonic()

    after = hurried.look(at(2)).devices

    assert time.monotonic() - started < 10 * SECONDS
    assert after[1:] == before[1:]
    hung = after[0]
    assert hung.unavailable.trouble is Trouble.UNKNOWN
    assert hung.unavailable.detail == "The GPU does not answer within 1 s."
    assert (hung.load, hung.processes) == (Load(), None)
    assert (hung.uuid, hung.model, hung.memory_mib) == ("GPU-0", before[0].model, 40960)


def test_a_partitioned_gpu_that_hangs_keeps_its_instances(double, hurried, at):
    before = hurried.look(at()).devices
    double[f"hang.{POWER}.1"] = LONG
    hung = hurried.look(at(2)).devices[1]
    assert (hung.partitioned, hung.unavailable.trouble) == (True, Trouble.UNKNOWN)
    assert [item.uuid for item in hung.instances] == [item.uuid for item in before[1].instances]
    assert {(item.used_mib, item.processes) for item in hung.instances} == {(None, None)}


def test_a_gpu_that_hangs_gets_no_second_call_and_no_second_wait(double, hurried, at):
    hurried.look(at())
    double[f"hang.{POWER}.0"] = LONG
    hurried.look(at(2))
    calls = double.calls(POWER)
    started = time.monotonic()
    for seconds in (4, 6, 8):
        assert troubles(hurried.look(at(seconds))) == ONE_UNKNOWN
    assert time.monotonic() - started < 3 * SECONDS
    assert double.calls(POWER) == calls + 3 * 2  # the other two
    hung = [thread for thread in threading.enumerate() if thread.name == "nvml-read-0"]
    assert len(hung) == 1


def test_all_gpus_may_hang_within_one_deadline(double, hurried, at):
    hurried.look(at())
    double.update({f"hang.{POWER}.{index}": LONG for index in range(3)})
    started = time.monotonic()
    seen = hurried.look(at(2))
    assert time.monotonic() - started < 3 * SECONDS
    assert set(troubles(seen).values()) == {Trouble.UNKNOWN}


def test_a_gpu_that_comes_back_is_read_again(double, hurried, at, caplog):
    before = hurried.look(at()).devices
    double[f"hang.{POWER}.0"] = LONG
    hurried.look(at(2))
    hurried.look(at(4))
    double["gpu.0.used"] = 777 * nvml_double.MIB
    double.let_go(f"hang.{POWER}.0")

    seen = hurried.look(at(6)).devices

    assert seen[0].load.used_mib == 777
    assert seen[0].load.power_limit_w == 400.0  # a slow reading, and it had been dropped
    assert (seen[0].unavailable, seen[1:]) == (None, before[1:])
    assert double.calls(INIT) == 1
    assert [record.getMessage() for record in caplog.records] == [
        "GPU GPU-0 does not answer within 1 s"
    ]


def test_what_a_late_call_saw_is_not_lost(double, hurried, at):
    def sample(seconds, share):
        return f"1000:{int(at(seconds).timestamp() * 1_000_000)}:{share}"

    hurried.look(at())
    double["gpu.0.samples"] = sample(1, 80)
    double["hang.nvmlDeviceGetRemappedRows.0"] = LONG  # after the samples were taken
    hurried.look(at(2))
    assert double.calls("nvmlDeviceGetProcessUtilization") == 2 + 1 + 2  # there were some of it
    double.let_go("hang.nvmlDeviceGetRemappedRows.0")
    assert hurried.look(at(4)).devices[0].processes[0].busy_percent == 80


def test_an_instance_that_hangs_is_its_gpus_hang(double, hurried, at):
    double["hang.nvmlDeviceGetComputeRunningProcesses_v3.1.mig.2"] = LONG
    seen = hurried.look(at())
    assert troubles(seen) == {"GPU-0": None, "GPU-1": Trouble.UNKNOWN, "GPU-2": None}
    double.let_go("hang.nvmlDeviceGetComputeRunningProcesses_v3.1.mig.2")
    assert set(troubles(hurried.look(at(2))).values()) == {None}


# ---- the session ----


def test_the_session_does_not_end_while_a_gpu_hangs(double, hurried, at):
    hurried.look(at())
    double.update({f"hang.{POWER}.0": LONG, "gpu.1.lost": 15})
    for seconds in (2, 62, 200):
        seen = troubles(hurried.look(at(seconds)))
        assert seen == {"GPU-0": Trouble.UNKNOWN, "GPU-1": Trouble.LOST, "GPU-2": None}
    hurried.close()
    assert troubles(hurried.look(at(202)))["GPU-2"] is None
    assert (double.calls(SHUTDOWN), double.calls(INIT)) == (0, 1)
    del double["gpu.1.lost"]
    double.let_go(f"hang.{POWER}.0")

    assert set(troubles(hurried.look(at(204))).values()) == {None}

    assert (double.calls(SHUTDOWN), double.calls(INIT)) == (1, 2)
    hurried.look(at(206))
    assert (double.calls(SHUTDOWN), double.calls(INIT)) == (1, 2)


def test_a_lookup_that_hangs_delays_no_other(double, hurried, at):
    double[f"hang.{LOOKUP}.0"] = LONG
    for seconds in (0, 2):
        seen = hurried.look(at(seconds))
        assert (seen.trouble, troubles(seen)) == (None, {"GPU-1": None, "GPU-2": None})
    assert double.calls(LOOKUP) == 3
    double.let_go(f"hang.{LOOKUP}.0")
    assert set(troubles(hurried.look(at(4)))) == {"GPU-0", "GPU-1", "GPU-2"}
    assert (double.calls(LOOKUP), double.calls(INIT)) == (3, 1)  # the late answer was good


def test_a_known_gpu_whose_lookup_hangs_is_unknown_and_not_lost(double, hurried, at):
    hurried.look(at())
    hurried.close()
    double[f"hang.{LOOKUP}.0"] = LONG
    seen = hurried.look(at(2))
    assert troubles(seen) == ONE_UNKNOWN
    assert seen.devices[0].unavailable.detail == "The GPU does not answer within 1 s."


@pytest.mark.parametrize("symbol", [INIT, "nvmlSystemGetDriverVersion"])
def test_a_session_that_hangs_while_it_opens_is_used_when_it_comes(double, hurried, at, symbol):
    double[f"hang.{symbol}"] = LONG
    for seconds in (0, 2, 100):
        seen = hurried.look(at(seconds))
        assert "The host's GPUs do not answer within 1 s" in seen.trouble
        assert seen.devices == ()
    double.let_go(f"hang.{symbol}")
    seen = hurried.look(at(102))
    assert (seen.trouble, seen.driver_version) == (None, "580.95.05")
    assert set(troubles(seen).values()) == {None}
    assert double.calls(INIT) == 1


def test_a_session_that_opened_too_late_is_closed_too(double, hurried, at):
    double[f"hang.{INIT}"] = LONG
    hurried.look(at())
    double.let_go(f"hang.{INIT}")
    hurried.close()
    assert (double.calls(INIT), double.calls(SHUTDOWN)) == (1, 1)


def test_a_count_that_hangs_is_the_hosts_trouble(double, hurried, at, caplog):
    before = hurried.look(at()).devices
    double[f"hang.{COUNT}"] = LONG
    for seconds in (2, 4):
        seen = hurried.look(at(seconds))
        assert "The host's GPUs do not answer within 1 s" in seen.trouble
        assert set(troubles(seen).values()) == {Trouble.UNKNOWN}
        assert [device.uuid for device in seen.devices] == [device.uuid for device in before]
    assert double.calls(COUNT) == 2
    assert len(caplog.records) == 1
    double.let_go(f"hang.{COUNT}")
    seen = hurried.look(at(6))
    assert (seen.trouble, seen.devices) == (None, before)


def test_a_shutdown_that_hangs_holds_up_neither_close_nor_look(double, hurried, at):
    before = hurried.look(at()).devices
    double[f"hang.{SHUTDOWN}"] = LONG
    hurried.close()
    hurried.close()
    seen = hurried.look(at(2))
    assert "The host's GPUs do not answer within 1 s" in seen.trouble
    assert (double.calls(SHUTDOWN), double.calls(INIT)) == (1, 1)
    double.let_go(f"hang.{SHUTDOWN}")
    assert hurried.look(at(4)).devices == before
    assert (double.calls(SHUTDOWN), double.calls(INIT)) == (1, 2)


def test_a_shutdown_that_hangs_in_a_look_is_tried_once(double, hurried, at):
    hurried.look(at())
    double.update({f"hang.{SHUTDOWN}": LONG, "gpu.0.lost": 15})
    hurried.look(at(2))
    assert "do not answer" in hurried.look(at(60)).trouble
    assert "do not answer" in hurried.look(at(62)).trouble
    del double["gpu.0.lost"]
    double.let_go(f"hang.{SHUTDOWN}")
    assert set(troubles(hurried.look(at(64))).values()) == {None}
    assert (double.calls(SHUTDOWN), double.calls(INIT)) == (1, 2)


def test_the_interpreter_exits_although_calls_hang(double):
    double.update({f"hang.{POWER}.0": LONG, f"hang.{LOOKUP}.1": LONG})
    script = (
        "from datetime import UTC, datetime\n"
        "from gpuspawner.gpus.nvml import NVMLInventory\n"
        "i = NVMLInventory('h', 1.0); seen = i.look(datetime.now(UTC)); i.close()\n"
        "print([(d.uuid, d.unavailable and d.unavailable.trouble.value) for d in seen.devices])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=double.environment(), capture_output=True, text=True,
        timeout=LONG / 10, check=True,
    )  # fmt: skip
    assert done.stdout == "[('GPU-0', 'unknown'), ('GPU-2', None)]\n"


# ---- the thread ----


def test_a_worker_returns_what_its_job_returns_and_raises_what_it_raises():
    worker = Worker("nvml-test")
    assert (worker.asked, worker.busy) == (False, False)
    worker.ask(lambda: 5)
    assert worker.result(60) == 5
    assert worker.asked is False
    worker.ask(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        worker.result(60)
    with pytest.raises(RuntimeError, match="expected a job"):
        worker.result(0)


def test_a_worker_that_is_late_is_not_waited_for_twice_and_not_asked_twice():
    worker, gate = Worker("nvml-test"), threading.Event()
    worker.ask(gate.wait)
    with pytest.raises(TimeoutError):
        worker.result(0)
    with pytest.raises(TimeoutError):
        worker.result(3600)  # at once
    with pytest.raises(RuntimeError, match="has not come back"):
        worker.ask(gate.wait)
    gate.set()
    (thread,) = [each for each in threading.enumerate() if each.name == "nvml-test"]
    assert thread.daemon
    thread.join(60)
    assert (worker.asked, worker.busy) == (True, False)
    assert worker.result(0) is True


def test_a_worker_forgets_a_late_result_when_it_is_asked_anew():
    worker, gate = Worker("nvml-test"), threading.Event()
    worker.ask(lambda: gate.wait() and "old")
    with pytest.raises(TimeoutError):
        worker.result(0)
    gate.set()
    for thread in threading.enumerate():
        if thread.name == "nvml-test":
            thread.join(60)
    worker.ask(lambda: "new")
    assert worker.result(60) == "new"
