"""All servers' processes of a machine, whoever made them."""

import os
import signal
import subprocess
from datetime import UTC, datetime, timedelta

import psutil
import pytest

from gpuspawner.engines.look import Running
from gpuspawner.engines.process import marks
from gpuspawner.engines.process.runtime import ProcessRuntime
from tests.engines.process_rig import alive, busy, children, key, lease_of, running
from tests.rig.processes import wait_for

# Other runs of the tests on this machine have servers too.
FENCE = 10**17 + os.getpid()


@pytest.fixture
def make_child(tmp_path):
    with children(tmp_path) as make:
        yield make


def listed():
    return [each for each in ProcessRuntime().everything() if each.fence in (FENCE, FENCE + 1)]


def test_each_server_with_a_grant_is_listed_once_and_nothing_that_it_started(make_child, tmp_path):
    child, kernels = busy(make_child, tmp_path, lease=lease_of(fence=FENCE))
    running(make_child, "sleep", "60", user="ben")  # without GPU
    (found,) = listed()
    assert (found.run_id, found.key, found.runs) == (child.run_id, key("ada"), True)
    assert found.grant is None
    assert not found.attached
    assert abs(found.made_at - datetime.now(UTC)) < timedelta(seconds=60)
    sight = ProcessRuntime()
    assert isinstance(sight.look_at(found.run_id), Running)

    sight.clear_run(found.run_id)

    child.wait()
    assert listed() == []
    assert not any(map(alive, kernels))
    assert sight.look_at(found.run_id) is None
    sight.clear_run(found.run_id)  # again is harmless


def test_clearing_one_run_leaves_the_others_of_its_user(make_child):
    """Also another grant of the same server; and what it left behind is cleared with it."""
    first = running(make_child, "sleep", "60", lease=lease_of(fence=FENCE))
    second = running(make_child, "sleep", "60", lease=lease_of(fence=FENCE + 1))
    wait_for("both", lambda: len(listed()) == 2)
    ProcessRuntime().clear_run(first.run_id)
    first.wait()
    assert isinstance(second.look(), Running)
    assert [each.run_id for each in listed()] == [second.run_id]


def test_what_a_server_detached_from_itself_goes_with_it(make_child, tmp_path):
    """By the mark of the grant: it is nobody's child any more."""
    detach = f"setsid sleep 61 & echo $! > {tmp_path}/left; exec sleep 60"
    child = running(make_child, "sh", "-c", detach, lease=lease_of(fence=FENCE))
    wait_for("it", lambda: (tmp_path / "left").exists() and (tmp_path / "left").read_text().strip())
    pid = int((tmp_path / "left").read_text())
    ProcessRuntime().clear_run(child.run_id)
    child.wait()
    wait_for("its end", lambda: not os.path.exists(f"/proc/{pid}"))


@pytest.mark.parametrize(
    ("uuids", "devices"), [("GPU-a,MIG-b", ("GPU-a", "MIG-b")), ("", ()), (None, ())]
)
def test_the_devices_that_it_was_told(uuids, devices):
    lease = lease_of(fence=FENCE)
    environment = {"PATH": os.environ["PATH"], **marks.marks_of(lease.key, lease)}
    environment |= {} if uuids is None else {"GPU_UUIDS": uuids}
    # Its number stays its own over the `exec`.
    code = f"{marks.LEADER}=$$ exec sleep 60"
    with subprocess.Popen(["sh", "-c", code], env=environment) as process:
        try:
            (found,) = wait_for("it", listed)
            assert found.devices == devices
            assert found.name == f"process {process.pid}"
        finally:
            process.kill()


def test_who_works_in_a_container_may_call_himself_what_he_likes():
    """There he has another number; even one who knows the machine's is not believed."""
    lease = lease_of(fence=FENCE)
    environment = {"PATH": os.environ["PATH"], **marks.marks_of(lease.key, lease)}
    # /proc is still the machine's there, and says its number outside.
    code = f"read pid rest < /proc/self/stat; {marks.LEADER}=$pid exec sleep 60"
    with subprocess.Popen(
        ["unshare", "--pid", "--fork", "sh", "-c", code], env=environment
    ) as process:
        try:
            sight = ProcessRuntime()
            wait_for("it", lambda: [x for x in children_of(process) if x.name() == "sleep"])
            (forger,) = children_of(process)
            given = sight.table.environment(sight.table.of_pid(forger.pid))
            assert marks.is_leader(given, forger.pid)
            assert marks.key_and_fence_of(given) == (key("ada"), FENCE)
            assert listed() == []
        finally:
            for each in [*children_of(process), process]:
                os.kill(each.pid, signal.SIGKILL)


def children_of(process):
    return psutil.Process(process.pid).children()
