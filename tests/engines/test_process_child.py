"""A server's process from its making to its end, its log and its folders."""

import os
import signal
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuspawner.domain.leases import Source
from gpuspawner.domain.reasons import Code, RefusedError
from gpuspawner.engines.look import EngineUnknownError, Finished, Made, Running
from gpuspawner.engines.process import marks
from gpuspawner.engines.process.folders import last_lines, make_private
from gpuspawner.engines.process.runtime import ProcessRuntime
from gpuspawner.engines.process.table import Identity, ProcessTable
from tests.engines.process_rig import children, key, lease_of, running
from tests.rig.processes import wait_for


@pytest.fixture
def make_child(tmp_path):
    with children(tmp_path) as make:
        yield make


# From its making to its end.


def test_a_process_is_made_before_its_server_runs(make_child):
    lease = lease_of(running_at=None, run_id=None)
    child = make_child("sleep", "60", lease=lease)
    sight = ProcessRuntime()
    assert child.look() == sight.look(lease) == Made(run_id=child.run_id)
    assert sight.look(lease_of(run_id=child.run_id)) == Made(run_id=child.run_id)
    child.let_go()
    wait_for("the server", lambda: isinstance(sight.look(lease), Running))
    seen = sight.look(lease)
    assert seen == child.look() == sight.look(lease_of(run_id=child.run_id))
    assert seen.run_id == child.run_id
    assert abs(seen.started_at - datetime.now(UTC)) < timedelta(seconds=30)


def test_what_was_not_let_go_ends_with_its_maker_and_never_runs(tmp_path):
    maker = f"""
import os, pathlib
from gpuspawner.engines.process.child import Child
here = pathlib.Path({str(tmp_path)!r})
child = Child(["touch", "it-ran"], environment={marks.marks_of(key("ada"), lease_of())!r},
              folder=here, log=here / "logs" / "log")
print(child.run_id, flush=True)
os._exit(0)
"""
    done = subprocess.run(
        [sys.executable, "-c", maker], capture_output=True, text=True, check=True, timeout=60
    )
    identity = Identity.parse(done.stdout.strip())
    table = ProcessTable()
    wait_for("the shell to end", lambda: not table.runs(identity))
    assert not (tmp_path / "it-ran").exists()
    lease = lease_of(run_id=identity.run_id, running_at=None)
    assert ProcessRuntime().look(lease).evidence.source is Source.NEVER_RAN


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("kill -9 $$", 137)])
def test_a_child_says_how_it_ended_each_time_the_same(make_child, script, code):
    child = running(make_child, "sh", "-c", script)
    seen = child.wait()
    assert isinstance(seen, Finished)
    assert (seen.evidence.source, seen.evidence.exit_code) == (Source.ENGINE, code)
    assert child.look() == seen
    child.let_go()  # a stop may be faster than a start
    assert child.look() == seen


def test_a_command_that_is_not_there_says_so_in_the_log(make_child, tmp_path):
    child = running(make_child, "no-such-server")
    assert child.wait().evidence.exit_code == 127
    assert "no-such-server" in last_lines(tmp_path / "logs" / "server.log")


def test_one_that_ended_before_it_was_let_go_never_ran(make_child):
    child = make_child("sleep", "60")
    os.kill(child.identity.pid, signal.SIGKILL)
    assert child.wait().evidence.source is Source.NEVER_RAN


def test_a_child_that_nobody_asked_after_does_not_run(make_child):
    lease = lease_of()
    child = running(make_child, "true", lease=lease)
    sight = ProcessRuntime()
    wait_for("its end", lambda: not sight.table.runs(child.identity))
    seen = sight.look(lease_of(run_id=child.run_id))
    assert isinstance(seen, Finished)
    assert (seen.evidence.source, seen.evidence.finished_at) == (
        Source.LAST_SEEN, lease.last_seen_at,
    )  # fmt: skip


def test_a_process_whose_first_thread_has_ended_runs_on(make_child, tmp_path):
    script = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""
    lease = lease_of()
    child = running(make_child, sys.executable, "-c", script, lease=lease)
    state = Path(f"/proc/{child.identity.pid}/stat")
    wait_for("its first thread", lambda: state.read_text().rpartition(")")[2].split()[0] == "Z")
    sight = ProcessRuntime()
    assert isinstance(child.look(), Running)
    assert isinstance(sight.look(lease_of(run_id=child.run_id)), Running)
    sight.clear(lease_of(run_id=child.run_id))
    assert isinstance(child.wait(), Finished)


def test_a_child_that_cannot_be_seen_is_ended(make_child):
    with pytest.raises(EngineUnknownError):
        make_child("sleep", "60", table=_Blind())
    assert ProcessRuntime().family_of_server(key("ada")).members == frozenset()


class _Blind(ProcessTable):
    def of_pid(self, pid):
        raise EngineUnknownError("cannot see")


# Folders.


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_private_folder_is_made_kept_and_closed_to_others(tmp_path):
    home = tmp_path / "homes" / "ada"
    make_private(home)
    assert mode_of(home) == mode_of(home.parent) == 0o700
    (home / "notes.txt").write_text("mine")
    home.chmod(0o755)
    make_private(home)
    assert mode_of(home) == 0o700
    assert (home / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("kind", ["link", "dangling", "file"])
def test_what_is_no_folder_of_its_own_is_refused(tmp_path, kind):
    elsewhere, home = tmp_path / "elsewhere", tmp_path / "ada"
    if kind == "file":
        home.write_text("")
    else:
        home.symlink_to(elsewhere)
    if kind == "link":
        elsewhere.mkdir(mode=0o755)
    with pytest.raises(RefusedError) as refused:
        make_private(home)
    assert refused.value.reason.code is Code.SITE_SETTING
    assert kind != "link" or mode_of(elsewhere) == 0o755


def test_another_users_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(RefusedError, match="another user"):
        make_private(tmp_path / "ada")


def test_a_log_is_ours_alone_begins_anew_and_follows_no_link(make_child, tmp_path):
    log = tmp_path / "logs" / "server.log"
    log.parent.mkdir(mode=0o755)
    log.write_text("an older run\n")
    log.chmod(0o644)
    running(make_child, "sh", "-c", "echo one; echo two >&2").wait()
    assert log.read_text() == "one\ntwo\n"
    assert (mode_of(log), mode_of(log.parent)) == (0o600, 0o700)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    log.unlink()
    log.symlink_to(victim)
    with pytest.raises(RefusedError):
        make_child("true")
    assert victim.read_text() == "precious"


def test_the_last_lines_are_few_and_short_and_may_be_missing(tmp_path):
    log = tmp_path / "log"
    assert last_lines(log) == ""
    log.write_bytes(b"\xff" + b"x" * 10_000 + b"\n" + b"\n".join(b"%d" % n for n in range(40)))
    assert last_lines(log).splitlines() == [str(n) for n in range(25, 40)]
    log.write_text("y" * 10_000)
    assert len(last_lines(log)) == 4000
    assert last_lines(Path(tmp_path)) == ""
