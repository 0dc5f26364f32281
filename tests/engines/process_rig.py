"""Servers' processes for the tests of the process engine."""

import os
import sys
from contextlib import contextmanager
from datetime import timedelta

import psutil

from gpuspawner.domain.leases import Lease, ServerKey, State
from gpuspawner.engines.process import marks
from gpuspawner.engines.process.child import Child
from gpuspawner.engines.process.runtime import ProcessRuntime
from tests.builders import T0, WHOLE
from tests.rig.processes import HUB_ID, wait_for

# A server as people make them: a kernel in a session of its own that is deaf to SIGTERM, and one
# that wiped its environment. It says in a file who they are once all of them run.
BUSY_SERVER = """
import os, subprocess, sys
deaf = "trap '' TERM; echo deaf; while :; do sleep 60 & wait $!; done"
kernel = subprocess.Popen(["sh", "-c", deaf], start_new_session=True, stdout=subprocess.PIPE)
kernel.stdout.readline()
wiped = subprocess.Popen(["env", "-i", "/bin/sleep", "60"], start_new_session=True)
with open("started.tmp", "w") as file:
    file.write(f"{kernel.pid} {wiped.pid}")
os.rename("started.tmp", "started")
kernel.wait()
"""


def key(user):
    """Name a server of this run of the tests."""
    return ServerKey(hub_id=HUB_ID, user=user)


def lease_of(user="ada", lease_id=7, **values):
    given = {
        "lease_id": lease_id, "key": key(user), "state": State.RUNNING, "profile": WHOLE,
        "image": None, "engine": "process", "requested_at": T0, "granted_at": T0,
        "running_at": T0, "last_seen_at": T0 + timedelta(minutes=5), "fence": 3,
    }  # fmt: skip
    return Lease(**(given | values))


@contextmanager
def children(tmp_path):
    """A maker of servers' processes; everything they ever were is ended at the end."""
    made = []

    def make(*command, lease=None, user="ada", table=None):
        of = lease.key if lease else key(user)
        child = Child(
            command, environment={"PATH": os.environ["PATH"], **marks.marks_of(of, lease)},
            folder=tmp_path, log=tmp_path / "logs" / "server.log", table=table,
        )  # fmt: skip
        made.append((child, of))
        return child

    try:
        yield make
    finally:
        sight = ProcessRuntime()
        for child, of in made:
            sight.end(lambda of=of: sight.family_of_server(of), 0)
            child.wait()


def running(make_child, *command, **values):
    child = make_child(*command, **values)
    child.let_go()
    return child


def busy(make_child, tmp_path, **values):
    """Start the busy server; return it and the processes of its kernels."""
    child = running(make_child, sys.executable, "-c", BUSY_SERVER, **values)
    wait_for("the kernels", (tmp_path / "started").exists)
    pids = (tmp_path / "started").read_text().split()
    return child, [psutil.Process(int(pid)) for pid in pids]


def alive(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
