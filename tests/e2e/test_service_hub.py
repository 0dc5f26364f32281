"""The service under a real hub that it never stops, and asked from inside a notebook."""

import contextlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.rig.hub import ROOT, docker_config
from tests.rig.processes import descendants, free_port, is_alive, wait_for
from tests.service.desk import Desk, make_desk

__all__ = ["make_desk"]

# A service that never stops its hub (hub facts H1)


class Stranger(BaseHTTPRequestHandler):
    """Another web program on the service's port."""

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_arguments: Any) -> None:
        """Stay quiet."""


def health(desk: Desk) -> dict[str, Any]:
    """What the service says through the hub's proxy; empty when somebody else answers."""
    with requests.Session() as session:
        session.trust_env = False
        answer = session.get(f"{desk.page_url}api/health", timeout=10)
    return answer.json() if answer.status_code == 200 else {}


@pytest.mark.proves("P7")
def test_a_busy_port_does_not_stop_the_hub(make_desk):
    desk = make_desk(start=False)
    server = ThreadingHTTPServer(("127.0.0.1", desk.port), Stranger)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        desk.hub.start()
        wait_for("the log", lambda: "the port is taken by another program" in desk.hub.log())
        assert desk.hub.api("GET", "/users").status == 200
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    wait_for("the service", lambda: health(desk).get("ledger") == "ok", timeout=60)
    assert desk.hub.pid


@pytest.mark.proves("P7", "R14")
def test_a_damaged_ledger_does_not_stop_the_hub(make_desk, tmp_path):
    desk = make_desk(start=False, empty=True)
    (tmp_path / "ledger.sqlite").write_bytes(b"no database" * 1000)
    desk.hub.start()
    wait_for("it to be seen", lambda: health(desk).get("ledger") == "degraded")
    assert desk.hub.api("GET", "/users").status == 200


def test_a_second_service_of_one_hub_waits_and_does_not_stop_the_hub(make_desk):
    desk = make_desk(start=False)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "GPUSPAWNER_LEDGER_URL": str(desk.ledger.url),
        "GPUSPAWNER_HUB_ID": "lab",
        "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{free_port()}",
    }
    lock = Path(desk.ledger.url.database or "").parent / "gpuspawner_service-lab.lock"
    command = [sys.executable, "-m", "gpuspawner.service.app", "--external"]
    other = subprocess.Popen(command, env=environment, cwd=desk.hub.directory)
    try:
        wait_for("the other's lock", lock.exists)
        desk.hub.start()
        wait_for("it to wait", lambda: "another-service" in health(desk).get("problems", []))
        assert desk.hub.api("GET", "/users").status == 200
    finally:
        other.terminate()
        other.wait(15)
    wait_for("its turn", lambda: "another-service" not in health(desk)["problems"], timeout=60)


def test_a_killed_hub_takes_its_service_along_and_the_next_one_starts_its_own(make_desk):
    desk = make_desk()
    services = [
        process for process in descendants(desk.hub.pid) if "service" in process.cmdline()
        or "gpuspawner.service.app" in process.cmdline()
    ]  # fmt: skip
    assert len(services) == 1
    desk.hub.kill()
    wait_for("the service to end", lambda: not is_alive(services[0]), timeout=15)
    desk.hub.start()
    assert wait_for("health", lambda: health(desk))["ledger"] in ("ok", "unknown")


# The notebook's way to the service (hub facts H3 and H4)


@pytest.mark.engine
@pytest.mark.parametrize("user", ["ada", "admin"])
def test_a_notebook_reaches_its_own_server_and_nothing_else(make_desk, engine, stub_image, user):
    gateway = engine.network("nb")
    desk = make_desk(docker_config(engine, "nb", stub_image), hub_ip=gateway)
    desk.hub.add_user(user)
    assert desk.hub.start_server(user).status in (201, 202)
    desk.hub.wait_server(user)
    desk.grant(user, "mig-2g")
    program = (
        "import json, os, urllib.error, urllib.request\n"
        "for name in ('me', 'devices', 'slices', 'leases', 'health'):\n"
        "    request = urllib.request.Request(os.environ['GPUSPAWNER_API_URL'] + name, headers=\n"
        "        {'Authorization': 'token ' + os.environ['JUPYTERHUB_API_TOKEN']})\n"
        "    try:\n"
        "        with urllib.request.urlopen(request, timeout=10) as answer:\n"
        "            print(json.dumps([name, answer.status, json.load(answer)]))\n"
        "    except urllib.error.HTTPError as error:\n"
        "        print(json.dumps([name, error.code, json.load(error)]))\n"
    )
    with contextlib.closing(engine.client()) as client:
        (container,) = client.containers()
        call = client.exec_create(container["Id"], ["python3", "-c", program])
        lines = client.exec_start(call["Id"]).decode().splitlines()
    answers = {name: (status, body) for name, status, body in map(json.loads, lines)}
    assert {name: status for name, (status, _) in answers.items()} == {
        "me": 200, "devices": 403, "slices": 403, "leases": 403, "health": 200,
    }  # fmt: skip
    me = answers["me"][1]
    assert (me["user"], me["kind"], me["server"], me["admin"]) == (user, "notebook", "", False)
    assert [item["profile"]["name"] for item in me["living"]] == ["mig-2g"]
