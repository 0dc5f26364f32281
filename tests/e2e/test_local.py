"""A real hub whose servers are processes, with a simulated lab: the demo's way."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from gpuspawner.broker.broker import Broker
from gpuspawner.broker.invariants import broken_promises
from gpuspawner.domain.devices import HostId, HostInventory
from gpuspawner.domain.leases import Lease, Source, State
from gpuspawner.domain.reasons import Code
from gpuspawner.gpus.factory import open_inventory
from gpuspawner.ledger.store import Ledger
from tests.builders import device, inventory
from tests.rig.hub import HubProcess
from tests.rig.processes import HUB_ID, is_alive, kill_all, wait_for

STUB = Path(__file__).parents[1] / "rig" / "stub" / "stub_server.py"
SECRETS = {"JUPYTERHUB_CRYPT_KEY": "ab" * 32, "CONFIGPROXY_AUTH_TOKEN": "proxy-secret"}
SPAWNER = "gpuspawner.spawners.local.GPULocalSpawner"
PROFILES = [
    {"name": "cpu", "title": "CPU only", "default": True},
    {"name": "slice", "title": "A100 slice", "mode": "mig", "instance": "2g.10gb"},
    {"name": "whole", "title": "A whole H100", "mode": "whole", "models": ["H100"]},
]
GPU = {"profile": "slice"}


class Demo:
    """A hub, its ledger, and the processes of its servers."""

    def __init__(self, hub: HubProcess, ledger: Ledger) -> None:
        self.hub = hub
        self.ledger = ledger

    def start(self, user: str, server: str = "", **options: str) -> None:
        answer = self.hub.start_server(user, server, options=options)
        assert answer.status in (201, 202), answer.body
        self.hub.wait_server(user, server)

    def leases(self, user: str = "ada") -> list[Lease]:
        with self.ledger.read() as books:
            return [lease for lease in books.recent() if lease.key.user == user][::-1]

    def lease(self, user: str = "ada") -> Lease:
        return self.leases(user)[-1]

    def wait_ended(self, lease_id: int) -> Lease:
        def look() -> Lease | None:
            with self.ledger.read() as books:
                lease = books.lease(lease_id)
            return lease if lease and lease.state is State.ENDED else None

        return wait_for("the lease to end", look)

    def processes(self, user: str = "ada") -> list[psutil.Process]:
        """All that carries the mark of the user's servers, the servers themselves first."""
        found = []
        theirs = f"{len(HUB_ID)}:{HUB_ID}{len(user)}:{user}"
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                mark = process.environ().get("GPUSPAWNER_SERVER", "")
                if mark.startswith(theirs) and is_alive(process):
                    found.append(process)
        return sorted(found, key=_is_child)

    def server(self, user: str = "ada") -> psutil.Process:
        """The user's server itself."""
        return self.processes(user)[0]

    def get(self, path: str, user: str = "ada") -> requests.Response:
        """Ask a server through the hub's proxy, with its owner's token."""
        token = self.hub.user_token(user)
        with requests.Session() as session:
            session.trust_env = False
            return session.get(
                f"{self.hub.url}user/{user}/{path}",
                headers={"Authorization": f"token {token}"},
                timeout=30,
            )


def _is_child(process: psutil.Process) -> bool:
    return process.environ().get("GPUSPAWNER_PID") != str(process.pid)


def lab() -> HostInventory:
    return open_inventory(HostId("lab"), "mixed-lab", None).look(datetime.now(UTC))


@pytest.fixture
def make_demo(make_hub: Callable[..., HubProcess], tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    """Make demos; the promises are checked when the test is over, and nothing stays."""
    made: list[Demo] = []

    def make(config: str = "", seen: HostInventory | None = None) -> Demo:
        url = f"sqlite:///{tmp_path}/ledger.sqlite"
        ledger = Ledger(url)
        Broker(ledger, "agent").observe(seen or lab(), datetime.now(UTC))
        head = f"""
c.JupyterHub.spawner_class = {SPAWNER!r}
c.JupyterHub.allow_named_servers = True
c.JupyterHub.cleanup_servers = False
c.Spawner.cmd = [{sys.executable!r}, {str(STUB)!r}]
c.Spawner.poll_interval = 1
c.GPUSpawner.profiles = {PROFILES!r}
c.GPUSpawner.ledger_url = {url!r}
c.GPUSpawner.hub_id = {HUB_ID!r}
"""
        hub = make_hub(head + config, env={**SECRETS, "GPUSPAWNER_LEDGER_URL": url})
        made.append(Demo(hub, ledger))
        return made[-1]

    yield make
    for demo in made:
        demo.hub.close()
        kill_all(process for user in ("ada", "ben") for process in demo.processes(user))
        assert broken_promises(demo.ledger) == []
        demo.ledger.close()


def test_a_server_starts_knows_what_it_has_and_stops_without_remains(make_demo):
    demo = make_demo()
    demo.start("ada", **GPU)
    lease = demo.lease()
    assert (lease.state, lease.engine) == (State.RUNNING, "process")
    assert demo.get("api").json() == {"version": "2.0.0"}
    seen = demo.server().environ()
    assert seen["GPU_MODE"] == "mig"
    assert seen["GPU_UUIDS"] == seen["NVIDIA_VISIBLE_DEVICES"] == lease.slices[0].uuid
    assert int(seen["GPU_MEM_LIMIT"]) == lease.slices[0].memory_mib * 2**20
    home = Path(seen["HOME"])
    assert home == demo.hub.directory / "gpuspawner-homes" / "ada"
    assert home.stat().st_mode & 0o777 == 0o700
    assert not {*SECRETS.values(), demo.ledger.url.render_as_string()} & set(seen.values())
    demo.hub.stop_server("ada")
    demo.hub.wait_server("ada", ready=False)
    lease = demo.wait_ended(lease.lease_id)
    assert (lease.reason.code, lease.finished_source) == (Code.STOPPED, Source.ENGINE)
    assert demo.processes() == []


def test_the_real_single_user_server_runs(make_demo):
    demo = make_demo("del c.Spawner.cmd\n")
    demo.start("ada", **GPU)
    assert "version" in demo.get("api").json()
    token = {"Authorization": f"token {demo.hub.user_token('ada')}"}
    with requests.Session() as session:
        session.trust_env = False
        kernel = session.post(f"{demo.hub.url}user/ada/api/kernels", headers=token, timeout=30)
    assert kernel.status_code == 201, kernel.text
    wait_for("the kernel", lambda: len(demo.processes()) > 1)
    lease = demo.lease()
    for process in demo.processes():
        assert process.environ()["GPU_UUIDS"] == lease.slices[0].uuid
    demo.hub.stop_server("ada")
    demo.hub.wait_server("ada", ready=False)
    assert demo.wait_ended(lease.lease_id).reason.code is Code.STOPPED
    assert demo.processes() == []


def test_a_killed_server_is_noticed_and_starts_again_the_first_time(make_demo):
    demo = make_demo()
    demo.start("ada", **GPU)
    first = demo.lease()
    demo.server().kill()
    ended = demo.wait_ended(first.lease_id)
    assert (ended.reason.code, ended.finished_source) == (Code.EXITED, Source.ENGINE)
    assert ended.reason.values == {"exit_code": 137}
    demo.hub.wait_server("ada", ready=False)
    demo.start("ada", **GPU)
    assert [lease.state for lease in demo.leases()] == [State.ENDED, State.RUNNING]


def test_two_servers_of_one_person_have_a_slice_each(make_demo):
    demo = make_demo()
    demo.start("ada", **GPU)
    demo.start("ada", "second", **GPU)
    held = {lease.slices[0].uuid for lease in demo.leases()}
    assert held == {process.environ()["GPU_UUIDS"] for process in demo.processes()}
    assert len(held) == 2
    demo.hub.stop_server("ada", "second")
    demo.hub.wait_server("ada", "second", ready=False)
    (left,) = demo.processes()
    assert left.environ()["JUPYTERHUB_SERVER_NAME"] == ""
    assert {lease.key.server: lease.state for lease in demo.leases()} == {
        "": State.RUNNING, "second": State.ENDED,
    }  # fmt: skip


def test_real_gpus_are_refused_and_work_without_one_goes_on(make_demo):
    real = inventory(device("real", model="NVIDIA H100"), host_id="lab", simulated=False)
    demo = make_demo(seen=real)
    answer = demo.hub.start_server("ada", options={"profile": "whole"})
    assert answer.status == 409
    assert "GPULocalSpawner" in answer.body["message"]
    assert demo.leases() == []
    demo.start("ada", profile="cpu")
    assert demo.server().environ()["CUDA_VISIBLE_DEVICES"] == ""


def test_a_server_that_dies_at_boot_is_told_with_its_last_words(make_demo):
    demo = make_demo('c.Spawner.cmd = ["sh", "-c", "echo no kernel to be found >&2; exit 3"]\n')
    answer = demo.hub.start_server("ada", options=GPU)
    assert answer.status == 500
    assert "no kernel to be found" in answer.body["message"]
    assert "exit code 3" in answer.body["message"]
    ended = demo.wait_ended(demo.lease().lease_id)
    assert (ended.reason.code, ended.finished_source) == (Code.DIED_AT_BOOT, Source.ENGINE)
    assert demo.processes() == []


@pytest.mark.parametrize("way", ["in order", "by a crash"])
def test_a_server_outlives_its_hub_and_keeps_its_lease(make_demo, way):
    demo = make_demo()
    demo.start("ada", **GPU)
    demo.start("ben", profile="cpu")
    before, server = demo.lease(), demo.server()
    demo.hub.terminate() if way == "in order" else demo.hub.kill()
    assert is_alive(server)
    demo.hub.start()
    demo.hub.wait_server("ada")
    demo.hub.wait_server("ben")
    assert demo.lease() == before
    assert demo.server() == server
    assert "had invalid url" not in demo.hub.log()
    demo.hub.stop_server("ada")
    demo.hub.wait_server("ada", ready=False)
    ended = demo.wait_ended(before.lease_id)
    assert (ended.reason.code, ended.finished_source) == (Code.STOPPED, Source.ENGINE)
    assert not is_alive(server)
    assert is_alive(demo.server("ben"))


def test_a_server_is_found_whose_hub_was_killed_before_it_saved_anything(make_demo, tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    # Runs, and answers only once the gate opens: the start is under way meanwhile.
    waits = f"cat {gate}; exec {sys.executable} {STUB}"
    demo = make_demo(f"""
c.Spawner.cmd = ["sh", "-c", {waits!r}]
c.JupyterHub.tornado_settings = {{"slow_spawn_timeout": 0}}
""")
    demo.hub.add_user("ada")
    demo.hub.api("POST", "/users/ada/server", json={"user_options": GPU})
    wait_for("the lease to run", lambda: demo.leases() and demo.lease().state is State.RUNNING)
    before, server = demo.lease(), demo.server()
    demo.hub.kill()
    gate.write_bytes(b"")
    demo.hub.start()
    model: dict[str, Any] | None = demo.hub.wait_server("ada")
    assert model is not None
    assert demo.lease() == before
    assert demo.server() == server
    assert demo.get("api").json() == {"version": "2.0.0"}
    os.kill(server.pid, signal.SIGTERM)
    ended = demo.wait_ended(before.lease_id)
    assert (ended.reason.code, ended.finished_source) == (Code.EXITED, Source.LAST_SEEN)
