"""Whose a process is, with real processes in real containers under a real hub and agent.

The driver is the simulated one: a file tells it which numbers it lists, as NVML lists the host's.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuspawner.domain.devices import DeviceUUID, HostId
from gpuspawner.domain.uses import Attribution, Use
from gpuspawner.gpus.origins import Origins
from gpuspawner.gpus.simulated import SimulatedInventory
from tests.conftest import lacking
from tests.e2e.lab import Lab, agent_with
from tests.rig.processes import wait_for

pytestmark = pytest.mark.engine

KERNELS = ("1b4e28ba-2fa1-11d2-883f-0016d3cca427", "5f7a6f0e-3c7b-4d1e-9d5a-0a8f5c3f9b11")
# As a kernel looks, and one process that it started.
_KERNEL = "import subprocess, sys; subprocess.run(['sleep', '600'])"


def command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""  # it has ended


class Site:
    """A lab, the file of its simulated driver, and what the agent made of it."""

    def __init__(self, lab: Lab, driver: SimulatedInventory) -> None:
        self.lab, self.driver = lab, driver
        self.host_id = lab.inventory.host_id

    def kernel(self, user: str, server: str, kernel_id: str) -> list[int]:
        """Run a kernel in a server's container; return its number and its child's, the host's."""
        lease = self.lease(user, server)
        assert lease.run_id is not None
        file = f"/tmp/kernel-{kernel_id}.json"
        with contextlib.closing(self.lab.engine.client()) as client:
            call = client.exec_create(lease.run_id, ["python3", "-c", _KERNEL, "-f", file])
            client.exec_start(call["Id"], detach=True)

            def look() -> list[int] | None:
                rows = client.top(lease.run_id, "-eo pid,ppid")["Processes"]
                parents = {int(row[0]): int(row[1]) for row in rows}
                mine = [pid for pid in parents if file in command_line(pid)]
                below = [pid for pid, parent in parents.items() if mine and parent == mine[0]]
                return [*mine, *below] if len(below) == 1 else None

            return wait_for(f"kernel {kernel_id}", look)

    def lease(self, user: str, server: str = "") -> Any:
        (found,) = [
            x for x in self.lab.living() if (x.key.user, x.key.server) == (user, server)
        ]  # fmt: skip
        return found

    def attribution(self) -> Attribution:
        with self.lab.ledger.read() as books:
            return books.attributions()[HostId(self.host_id)]

    def use(self, lease_id: int, memory_mib: int | None) -> Use:
        """Wait until the agent says that a lease uses so much, and return what it says."""

        def look() -> Use | None:
            found = [x for x in self.attribution().uses if x.lease_id == lease_id]
            return next((x for x in found if x.memory_mib == memory_mib), None)

        return wait_for(f"lease {lease_id} to use {memory_mib} MiB", look, 20)


@pytest.fixture
def needs_host_processes() -> None:
    if missing := Origins().unavailable():
        lacking(missing)


@pytest.fixture
def site(needs_host_processes: None, make_lab: Callable[..., Lab], tmp_path: Path) -> Site:
    file = tmp_path / "driver.json"
    config = agent_with("--observe-seconds", "1", "--simulation-file", str(file))
    lab = make_lab(agent=True, config=config, groups={"ml101": ["ada", "ben"]})
    for user in ("ada", "ben"):
        lab.hub.add_user(user)
    return Site(lab, SimulatedInventory(lab.inventory.host_id, "mixed-lab", file))


def nest(pid: int) -> None:
    """Move a process into a control group as an engine inside its container would make it."""
    groups = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    paths = {names: path for _, names, path in groups}
    root = "pids" if "pids" in paths else ""  # version 1, or the one hierarchy of version 2
    inner = Path("/sys/fs/cgroup") / root / paths[root].lstrip("/") / "docker" / ("f" * 64)
    inner.mkdir(parents=True)
    (inner / "cgroup.procs").write_text(str(pid))
    assert f"/docker/{'f' * 64}" in Path(f"/proc/{pid}/cgroup").read_text()


def test_two_servers_of_one_person_and_a_neighbour_on_one_device(site: Site) -> None:
    """Each gets what its own kernels have, and their children, also in containers of their own."""
    lab = site.lab
    for user, server in (("ada", "one"), ("ada", "two"), ("ben", "")):
        lab.start(user, server, profile="share")
    one, two, ben = site.lease("ada", "one"), site.lease("ada", "two"), site.lease("ben")
    first = site.kernel("ada", "one", KERNELS[0])
    second = site.kernel("ada", "one", KERNELS[1])
    other = site.kernel("ada", "two", KERNELS[0])
    nest(other[1])
    for pid, lease, memory_mib, busy in (
        (first[0], one, 400, 10), (first[1], one, 600, 90), (second[0], one, 300, 0),
        (other[1], two, 1200, 55),
    ):  # fmt: skip
        site.driver.run(pid, lease.slices[0].uuid, memory_mib=memory_mib, busy_percent=busy)

    use = site.use(one.lease_id, 1300)
    assert use.busy_percent == 90
    assert {x.pid: (x.memory_mib, x.kernel_id) for x in use.processes or ()} == {
        first[0]: (400, KERNELS[0]), first[1]: (600, KERNELS[0]), second[0]: (300, KERNELS[1]),
    }  # fmt: skip
    assert site.use(two.lease_id, 1200).busy_percent == 55
    assert site.use(ben.lease_id, 0).processes == ()
    report = json.loads(lab.cli("status", "--json").stdout)
    shown = {
        item["holder"]: item["used_mib"]
        for device in report["hosts"][0]["devices"] for item in device["slices"] if item["holder"]
    }  # fmt: skip
    assert shown == {"ada/one": 1300, "ada/two": 1200, "ben": 0}
    assert "1.3 GiB" in lab.cli("status").stdout

    site.driver.end(first[1])
    assert len(site.use(one.lease_id, 700).processes or ()) == 2
    lab.stop("ada", "one")
    wait_for("no use of a lease that ended",
             lambda: one.lease_id not in {x.lease_id for x in site.attribution().uses})  # fmt: skip


@contextlib.contextmanager
def sleeping() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def test_what_is_foreign_is_told_from_what_is_ours_and_keeps_the_device_from_others(
    site: Site, stub_image: str
) -> None:
    """A process of the host, and one of a container that nobody knows, on a device with a lease."""
    lab = site.lab
    lab.start("ada", profile="whole")
    lease = site.lease("ada")
    uuid = DeviceUUID(lease.slices[0].uuid)
    (mine, _) = site.kernel("ada", "", KERNELS[0])
    with contextlib.closing(lab.engine.client()) as client, sleeping() as host_pid:
        made = client.create_container(stub_image, ["sleep", "600"], name="old-training")["Id"]
        client.start(made)
        stray = client.inspect_container(made)["State"]["Pid"]
        site.driver.run(mine, uuid, memory_mib=5000, busy_percent=30)
        site.driver.run(host_pid, uuid, memory_mib=700)
        site.driver.run(stray, uuid, memory_mib=2000, busy_percent=100)

        use = site.use(lease.lease_id, 5000 + _rest(site, uuid))
        assert [x.pid for x in use.processes or ()] == [mine]
        assert use.busy_percent == 30

        def named() -> bool:
            return {(x.pid, x.container) for x in _unit(site, uuid).foreign} == {
                (host_pid, None), (stray, "old-training"),
            }  # fmt: skip

        wait_for("the engine's list to name the container", named, 40)
        unit = _unit(site, uuid)
        assert (unit.foreign_mib, unit.leases_mib) == (2700, 5000)

        # The lease goes on; after it nobody gets the device until what is foreign has gone.
        lab.stop("ada")
        site.driver.end(mine)
        refused = lab.hub.start_server("ben", options={"profile": "whole"})
        assert refused.status == 429, refused.body
        assert "unavailable: foreign old-training (2 GiB), python" in lab.cli("status").stdout
        assert "old-training" not in str(refused.body)
        client.remove_container(made, force=True)
    # They have ended and the driver holds their memory still: it is nobody's to give.
    wait_for("those to be untold", lambda: _unit(site, uuid).untold_mib == 2700)
    wait_for("a second look", lambda: "cannot be traced (2.6 GiB)" in lab.cli("status").stdout)
    for pid in (host_pid, stray):
        site.driver.end(pid)
    wait_for("the device to be free", lambda: "foreign" not in lab.cli("status").stdout)
    lab.start("ben", profile="whole")
    assert site.lease("ben").slices[0].uuid == uuid


def _unit(site: Site, uuid: DeviceUUID) -> Any:
    (unit,) = [x for x in site.attribution().units if x.uuid == uuid]
    return unit


def _rest(site: Site, uuid: DeviceUUID) -> int:
    """What the device shows beside its processes: of a whole one it is its tenant's."""
    unit = wait_for("memory on the device", lambda: _unit(site, uuid) if _unit(
        site, uuid).foreign_mib == 2700 else None)  # fmt: skip
    return int(unit.other_mib)
