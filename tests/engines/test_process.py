"""Servers as processes: found again, told apart, ended without remains."""

import errno
import os
import signal

import pytest

from gpuspawner.domain.leases import Evidence, Source
from gpuspawner.engines.look import Absent, EngineUnknownError, Finished, Running
from gpuspawner.engines.process import runtime
from gpuspawner.engines.process.folders import last_lines
from gpuspawner.engines.process.runtime import ProcessRuntime
from gpuspawner.engines.process.server import ServerProcesses
from gpuspawner.engines.process.table import Identity, ProcessTable
from tests.engines.process_rig import alive, busy, children, key, lease_of, running
from tests.rig.processes import kill_all, wait_for


@pytest.fixture
def make_child(tmp_path):
    with children(tmp_path) as make:
        yield make


# Leases, servers and their families.


def test_clear_ends_the_server_and_all_that_it_started(make_child, tmp_path):
    lease = lease_of()
    child, kernels = busy(make_child, tmp_path, lease=lease)
    other = running(make_child, "sleep", "60", lease=lease_of("ben", 71, fence=4))
    sight = ProcessRuntime()
    sight.clear(lease_of(run_id=child.run_id))
    assert not any(map(alive, kernels))
    assert isinstance(child.wait(), Finished)
    sight.clear(lease)  # again is harmless
    assert isinstance(other.look(), Running)


def test_a_server_is_asked_first_and_may_end_in_order(make_child, tmp_path):
    lease = lease_of()
    orderly = "trap 'kill $!; echo in order; exit 0' TERM; sleep 60 & echo ready; wait"
    child = running(make_child, "sh", "-c", orderly, lease=lease)
    log = tmp_path / "logs" / "server.log"
    wait_for("the server", lambda: last_lines(log) == "ready")
    ProcessRuntime().clear(lease)
    assert child.wait().evidence.exit_code == 0
    assert last_lines(log) == "ready\nin order"


def test_a_dead_server_is_finished_though_its_kernels_live_and_clear_ends_them(
    make_child, tmp_path
):
    lease = lease_of()
    child, kernels = busy(make_child, tmp_path, lease=lease)
    lease = lease_of(run_id=child.run_id)
    os.kill(child.identity.pid, signal.SIGKILL)
    assert child.wait().evidence.exit_code == 137
    sight = ProcessRuntime()
    assert isinstance(sight.look(lease), Finished)
    assert alive(kernels[0])
    sight.clear(lease)
    assert not alive(kernels[0])
    kill_all(kernels)  # the one without marks or parent: a variable keeps nobody in


def test_a_lease_without_a_process_has_none():
    never = lease_of(run_id=None, running_at=None)
    assert ProcessRuntime().look(never) == Absent(evidence=Evidence(source=Source.NEVER_RAN))


def test_a_number_that_was_given_out_again_is_another_process(make_child):
    child = running(make_child, "sleep", "60", user="cho")
    real = child.identity
    former = Identity(pid=real.pid, started_ticks=real.started_ticks - 1, boot=real.boot)
    booted = Identity(pid=real.pid, started_ticks=real.started_ticks, boot="00000000")
    sight = ProcessRuntime()
    for identity in (former, booted):
        lease = lease_of(run_id=identity.run_id)
        assert isinstance(sight.look(lease), Finished)
        sight.clear(lease)
        sight.table.send(identity, signal.SIGKILL)
    assert isinstance(child.look(), Running)


def test_a_process_that_may_not_be_looked_into_is_taken_for_running(make_child):
    class Closed(ProcessTable):
        def environment(self, process):
            return {}

    child = make_child("sleep", "60")
    sight = ProcessRuntime(Closed())
    assert isinstance(sight.look(lease_of(run_id=child.run_id)), Running)
    sight.clear(lease_of(run_id=child.run_id))
    assert isinstance(child.wait(), Finished)


def test_a_server_of_an_earlier_hub_is_found_by_its_marks_and_its_end_is_seen(make_child):
    child = running(make_child, "sleep", "60")
    sight = ProcessRuntime()
    wait_for("the server", lambda: isinstance(sight.look_at_process(child.identity), Running))
    for told in (child.run_id, "", "something else"):
        later = ServerProcesses(ProcessRuntime())
        later.take_up(told)
        assert later.look(key("ada")) == child.look()
        assert later.run_id == child.run_id
    assert isinstance(ServerProcesses(ProcessRuntime()).look(key("ben")), Absent)
    found = later.end(key("ada"), now=True)
    assert found[child.run_id].source is Source.ENGINE
    assert isinstance(later.look(key("ada")), Finished)
    assert later.end(key("ada"), now=True) == {}


# What is never done.


@pytest.fixture
def signals(monkeypatch):
    """What is sent; nothing arrives."""
    sent = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setattr(
        signal, "pidfd_send_signal", lambda handle, number: sent.append((handle, number))
    )
    return sent


def test_we_never_signal_ourselves_our_parents_or_everybody(signals):
    table = ProcessTable()
    own = table.of_pid(os.getpid())
    for pid in (0, 1, own.pid, own.parent_pid):
        process = table.of_pid(pid)
        identity = process.identity if process else Identity(pid=pid, started_ticks=0, boot="")
        table.send(identity, signal.SIGKILL)
    assert signals == []


def test_a_process_that_is_gone_is_not_signalled(make_child, signals):
    child = running(make_child, "true")
    child.wait()
    ProcessTable().send(child.identity, signal.SIGTERM)
    assert signals == []


def test_an_old_kernel_without_process_handles_will_do(make_child, monkeypatch):
    def not_implemented(_pid):
        raise OSError(errno.ENOSYS, "not implemented")

    lease = lease_of()
    child = running(make_child, "sleep", "60", lease=lease)
    monkeypatch.setattr(os, "pidfd_open", not_implemented)
    ProcessRuntime().clear(lease)
    assert child.wait().evidence.exit_code == 143


def test_a_process_that_does_not_end_is_no_end(make_child, monkeypatch):
    monkeypatch.setattr(runtime, "KILL_SECONDS", 0.05)
    lease = lease_of()
    running(make_child, "sleep", "60", lease=lease)

    class Powerless(ProcessTable):
        def send(self, identity, number):
            pass

    sight = ProcessRuntime(Powerless())
    with pytest.raises(EngineUnknownError, match="do not end"):
        sight.end(lambda: sight.family_of_lease(lease), 0)


@pytest.mark.parametrize("fill", ["nothing", "others only", "no folder"])
def test_without_our_own_processes_in_proc_nothing_is_known(tmp_path, fill):
    root = tmp_path / "proc"
    if fill != "no folder":
        (root / "sys/kernel/random").mkdir(parents=True)
        (root / "sys/kernel/random/boot_id").write_text("0123456789\n")
    if fill == "others only":
        (root / "2").mkdir()
        (root / "2" / "stat").write_text("2 (x) S 1 " + "0 " * 40)
    sight = ProcessRuntime(ProcessTable(root))
    for lease in (lease_of(run_id=None), lease_of(run_id="pid:3:4:01234567")):
        for ask in (sight.look, sight.clear):
            with pytest.raises(EngineUnknownError):
                ask(lease)


def test_a_container_is_no_process(make_child):
    with pytest.raises(EngineUnknownError, match="no process"):
        ProcessRuntime().look(lease_of(run_id="4c01db0b339c"))
