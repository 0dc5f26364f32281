"""The service as a process of its own, without a hub."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.rig.hub import ROOT
from tests.rig.processes import free_port, is_alive, kill_all, wait_for

MODULE = [sys.executable, "-m", "gpuspawner.service.app"]
# A parent that starts the service and then only waits, as a hub does.
PARENT = """
import subprocess, sys, time
print(subprocess.Popen(sys.argv[1:], start_new_session=True).pid, flush=True)
time.sleep(3600)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[bytes], int]]]:
    """Start a command with the service's environment; returns the process and the port."""
    started = []

    def work(*command: str, port: int | None = None, **environment: str):
        port = port or free_port()
        with (tmp_path / "log").open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=log,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "GPUSPAWNER_LEDGER_URL": f"sqlite:///{tmp_path}/ledger.sqlite",
                    "GPUSPAWNER_HUB_ID": "hub",
                    "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{port}",
                    **environment,
                },
            )
        started.append(process)
        return process, port

    yield work
    for process in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            kill_all([psutil.Process(process.pid)])
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def health(port: int) -> dict | None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}/services/gpu/api/health", timeout=5) as answer:
            return json.load(answer)
    except OSError:
        return None


def test_it_answers_ends_in_order_and_leaves_its_files_to_their_owner(start, tmp_path):
    process, port = start(*MODULE)
    wait_for("health", lambda: health(port))
    wait_for("its lock", lambda: (tmp_path / "gpuspawner_service-hub.lock").exists())
    for path in tmp_path.glob("gpuspawner_service*"):
        assert path.stat().st_mode & 0o077 == 0
    process.send_signal(signal.SIGTERM)
    assert process.wait(15) == 0


@pytest.mark.parametrize(
    "environment",
    [
        {"GPUSPAWNER_LEDGER_URL": "postgresql://x:y@127.0.0.1:1/none"},
        {"GPUSPAWNER_LEDGER_URL": "nonsense"},
        {"GPUSPAWNER_LEDGER_URL": "sqlite:////nowhere/at/all.sqlite"},
        {"GPUSPAWNER_HUB_ID": "", "GPUSPAWNER_HUB_ID_FILE": "/nowhere/at/all"},
        {"JUPYTERHUB_API_URL": "http://127.0.0.1:1/hub/api", "JUPYTERHUB_API_TOKEN": ""},
    ],
)
def test_whatever_is_wrong_health_answers_degraded_and_the_process_stays(start, environment):
    process, port = start(*MODULE, **environment)
    found = wait_for("health", lambda: health(port))
    assert found["status"] == "degraded"
    assert process.poll() is None


def test_a_damaged_ledger_does_not_end_it(start, tmp_path):
    (tmp_path / "ledger.sqlite").write_bytes(b"no database" * 1000)
    process, port = start(*MODULE)
    wait_for("it to be seen", lambda: (health(port) or {}).get("ledger") == "degraded")
    assert process.poll() is None


def test_it_gets_its_port_when_the_other_program_ends(start, tmp_path):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port = free_port()
        taken.bind(("127.0.0.1", port))
        taken.listen()
        process, _ = start(*MODULE, port=port)
        wait_for("it to say so", lambda: b"taken by another" in (tmp_path / "log").read_bytes())
        assert process.poll() is None
    wait_for("health", lambda: health(port))


def test_it_ends_when_the_hub_that_started_it_is_killed(start):
    parent, port = start(sys.executable, "-c", PARENT, *MODULE)
    assert parent.stdout is not None
    service = psutil.Process(int(parent.stdout.readline()))
    try:
        wait_for("health", lambda: health(port))
        parent.kill()
        parent.wait()
        wait_for("the service to end", lambda: not is_alive(service), timeout=15)
    finally:
        kill_all([service])


def test_an_external_one_outlives_whoever_started_it(start):
    parent, port = start(sys.executable, "-c", PARENT, *MODULE, "--external")
    assert parent.stdout is not None
    service = psutil.Process(int(parent.stdout.readline()))
    try:
        wait_for("health", lambda: health(port))
        parent.kill()
        parent.wait()
        before = wait_for("health", lambda: health(port))
        assert before["version"]
        wait_for("another parent", lambda: service.ppid() != parent.pid)
        # A managed one looks for its parent each second: this one has no such look to end it.
        assert "--external" in service.cmdline()
        assert is_alive(service)
    finally:
        kill_all([service])


def test_wrong_arguments_are_refused_with_status_2(start):
    process, _ = start(*MODULE, "--nonsense")
    assert process.wait(30) == 2
