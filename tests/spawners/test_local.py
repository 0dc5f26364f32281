"""GPULocalSpawner without a hub around it: what a server gets, its refusals and its ends."""

import asyncio
import os
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from gpuspawner.domain.leases import Source, State
from gpuspawner.domain.reasons import Code
from gpuspawner.engines.naming import safe_part
from gpuspawner.spawners.refusals import Refusal
from tests.builders import device, inventory
from tests.rig.processes import HUB_ID, wait_for
from tests.spawners.local_site import (
    CPU,
    STUB,
    WHOLE,
    inside,
    is_private,
    open_site,
    processes_of,
    start,
)


@pytest.fixture
async def site(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with open_site(tmp_path) as site:
        yield site


# A life.


async def test_a_server_lives_and_its_lease_with_it(site):
    spawner = site.spawner()
    ip, port = await start(spawner, WHOLE)
    lease = site.only_lease()
    assert (ip, port) == ("127.0.0.1", spawner.port)
    assert (lease.state, lease.engine) == (State.RUNNING, "process")
    assert lease.run_id.startswith(f"pid:{spawner.pid}:")
    assert abs((lease.running_at - datetime.now(UTC)).total_seconds()) < 30
    assert await spawner.poll() is None
    await spawner.stop()
    lease = site.only_lease()
    assert (lease.state, lease.reason.code) == (State.ENDED, Code.STOPPED)
    assert lease.finished_source is Source.ENGINE
    assert await spawner.poll() == 0
    assert processes_of(spawner) == frozenset()


@pytest.mark.proves("P9")
async def test_it_gets_what_its_lease_says_and_nothing_of_the_hubs(site, monkeypatch):
    for name in ("JUPYTERHUB_CRYPT_KEY", "CONFIGPROXY_AUTH_TOKEN", "GPUSPAWNER_LEDGER_URL"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("OF_THE_HUB", "secret")
    monkeypatch.setenv("KEPT", "kept")
    spawner = site.spawner(
        env_keep=["PATH", "KEPT", "JUPYTERHUB_CRYPT_KEY", "CONFIGPROXY_AUTH_TOKEN"],
        environment={
            "GPU_UUIDS": "GPU-mine", "GPUSPAWNER_LEDGER_URL": "secret", "COURSE": "ml101",
            "GPUSPAWNER_PID": "1", "GPUSPAWNER_LEASE": "hub:1:1",
        },
    )  # fmt: skip
    await start(spawner, WHOLE)
    seen, lease = inside(spawner), site.only_lease()
    uuid = lease.slices[0].uuid
    assert "secret" not in seen.values()
    assert (seen["COURSE"], seen["KEPT"], seen["USER"]) == ("ml101", "kept", "ada")
    assert seen["GPU_MODE"] == "whole"
    assert seen["GPU_UUIDS"] == seen["NVIDIA_VISIBLE_DEVICES"] == uuid
    assert seen["CUDA_VISIBLE_DEVICES"] == uuid
    assert int(seen["GPU_MEM_LIMIT"]) == lease.slices[0].memory_mib * 2**20
    assert seen["GPUSPAWNER_LEASE"] == f"{HUB_ID}:{lease.lease_id}:{lease.fence}"
    assert seen["GPUSPAWNER_PID"] == str(spawner.pid)
    assert "a-secret-token" not in " ".join(psutil.Process(spawner.pid).cmdline())


async def test_without_a_gpu_there_is_none_and_no_record(site):
    spawner = site.spawner(environment={"CUDA_VISIBLE_DEVICES": "0", "GPU_MODE": "whole"})
    await start(spawner)
    seen = inside(spawner)
    assert (seen["NVIDIA_VISIBLE_DEVICES"], seen["CUDA_VISIBLE_DEVICES"]) == ("void", "")
    assert {"GPU_MODE", "GPU_UUIDS", "GPU_MEM_LIMIT", "GPUSPAWNER_LEASE"}.isdisjoint(seen)
    assert site.leases == []
    await spawner.stop()
    assert processes_of(spawner) == frozenset()


async def test_a_slice_is_named_by_its_own_uuid(site):
    spawner = site.spawner()
    await start(spawner, {"profile": "slice"})
    uuid = site.only_lease().slices[0].uuid
    assert uuid.startswith("MIG-")
    assert inside(spawner)["GPU_UUIDS"] == uuid


async def test_root_is_told_that_it_may(site, monkeypatch):
    assert site.spawner(args=["--debug"]).get_args() == ["--debug", "--allow-root"]
    assert site.spawner(args=["--allow-root"]).get_args() == ["--allow-root"]
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert site.spawner(args=["--debug"]).get_args() == ["--debug"]


async def test_a_shell_of_the_sites_may_start_it(site):
    spawner = site.spawner(shell_cmd=["/bin/sh", "-c"])
    assert spawner._command()[:2] == ["/bin/sh", "-c"]
    await start(spawner)
    await spawner.stop()
    assert processes_of(spawner) == frozenset()


# Homes.


async def test_a_home_is_private_the_persons_own_and_kept(site, tmp_path):
    spawner, other = site.spawner("ada"), site.spawner("Ada@../etc")
    await start(spawner)
    home = Path(inside(spawner)["HOME"])
    assert home == tmp_path / "gpuspawner-homes" / "ada"
    assert psutil.Process(spawner.pid).cwd() == str(home)
    assert is_private(home)
    (home / "notes.txt").write_text("mine")
    await spawner.stop()
    await start(spawner)
    assert (home / "notes.txt").read_text() == "mine"
    assert Path(other.home_dir) == home.parent / safe_part("Ada@../etc")
    assert Path(other.home_dir).parent == home.parent


async def test_a_home_that_leads_elsewhere_is_refused_and_the_gpu_goes_back(site, tmp_path):
    (tmp_path / "gpuspawner-homes").mkdir()
    (tmp_path / "gpuspawner-homes" / "ada").symlink_to(tmp_path)
    spawner = site.spawner()
    with pytest.raises(Refusal) as refused:
        await start(spawner, WHOLE)
    assert refused.value.why.code is Code.SITE_SETTING
    assert site.only_lease().reason.code is Code.SITE_SETTING
    assert site.only_lease().finished_source is Source.NEVER_RAN


# What is refused.


async def test_real_gpus_are_refused_before_anything_is_asked_for(site):
    site.observe(inventory(device("real"), host_id="lab", simulated=False))
    with pytest.raises(Refusal) as refused:
        await start(site.spawner(), WHOLE)
    assert refused.value.why.code is Code.SITE_SETTING
    assert "lab" in refused.value.why.values["why"]
    assert site.leases == []
    await start(site.spawner("ben"))  # without GPU it runs


async def test_a_real_gpu_of_a_mixed_pool_is_given_back_unused(site):
    now = datetime.now(UTC)
    site.observe(inventory(
        *(device(f"real-{n}", memory_mib=200_000) for n in range(9)),
        host_id="real", simulated=False, observed_at=now,
    ))  # fmt: skip
    spawner = site.spawner()
    with pytest.raises(Refusal) as refused:
        await start(spawner, WHOLE)
    assert refused.value.why.code is Code.SITE_SETTING
    lease = site.only_lease()
    assert (lease.state, lease.reason.code) == (State.ENDED, Code.SITE_SETTING)
    assert (lease.finished_source, lease.run_id) == (Source.NEVER_RAN, None)
    assert processes_of(spawner) == frozenset()


@pytest.mark.parametrize("options", [CPU, WHOLE], ids=["cpu", "gpu"])
async def test_a_server_that_dies_at_boot_says_why_and_holds_nothing(site, options):
    spawner = site.spawner(cmd=["sh", "-c", "echo no kernel $JUPYTERHUB_API_TOKEN; exit 3"])
    with pytest.raises(Refusal) as refused:
        await start(spawner, options)
    why = refused.value.why
    assert why.code is Code.DIED_AT_BOOT
    assert why.values == {"exit_code": 3, "log": "no kernel [token]"}
    for lease in site.leases:
        assert (lease.state, lease.reason.code) == (State.ENDED, Code.DIED_AT_BOOT)
        assert lease.finished_source is Source.ENGINE
    spawner.cmd = [sys.executable, str(STUB)]
    await start(spawner, options)
    assert await spawner.poll() is None


async def test_a_command_that_is_not_there_is_named(site):
    with pytest.raises(Refusal) as refused:
        await start(site.spawner(cmd=["no-such-server"]))
    assert refused.value.why.values["exit_code"] == 127
    assert "no-such-server" in refused.value.why.values["log"]


async def test_a_process_that_cannot_be_made_is_a_refusal(site):
    with pytest.raises(Refusal) as refused:
        await start(site.spawner(popen_kwargs={"executable": "/no/such/shell"}), WHOLE)
    assert refused.value.why.code is Code.START_FAILED
    assert site.only_lease().state is State.ENDED


async def test_a_server_that_never_answers_is_ended(site):
    spawner = site.spawner(cmd=["sh", "-c", "sleep 60"], http_timeout=1)
    with pytest.raises(Refusal) as refused:
        await start(spawner, WHOLE)
    assert refused.value.why.code is Code.NOT_READY
    assert processes_of(spawner) == frozenset()
    assert site.only_lease().state is State.ENDED


# Ends.


async def test_nothing_to_stop_signals_nobody(site, monkeypatch):
    sent = []
    monkeypatch.setattr(os, "kill", lambda *call: sent.append(call))
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *call: sent.append(call))
    spawner = site.spawner()
    assert spawner.pid == 0
    assert await spawner.poll() == 0
    await spawner.stop()
    await spawner.stop(now=True)
    assert sent == []


async def test_a_killed_server_is_noticed_with_its_leftovers_and_starts_again_at_once(site):
    spawner = site.spawner(cmd=["sh", "-c", f"sleep 60 & exec {sys.executable} {STUB}"])
    await start(spawner, WHOLE)
    leftover = next(p for p in psutil.Process(spawner.pid).children() if p.name() == "sleep")
    os.kill(spawner.pid, signal.SIGKILL)
    assert await _ended(spawner) == 137
    assert await spawner.poll() == 137
    lease = site.only_lease()
    assert (lease.state, lease.reason.code) == (State.ENDED, Code.EXITED)
    assert lease.reason.values == {"exit_code": 137}
    assert lease.finished_source is Source.ENGINE
    assert not leftover.is_running() or leftover.status() == psutil.STATUS_ZOMBIE
    await start(spawner, WHOLE)
    assert await spawner.poll() is None


async def _ended(spawner):
    """Return how it ended; the kernel may take a moment to show it."""
    table = spawner._runtime.table
    wait_for("its end", lambda: table.of_pid(spawner.pid).is_zombie)
    return await spawner.poll()


async def test_a_start_that_is_cancelled_is_taken_back_by_the_stop_after_it(site):
    spawner = site.spawner(cmd=["sh", "-c", "sleep 60"])
    starting = asyncio.create_task(start(spawner, WHOLE))
    while not (site.leases and site.only_lease().state is State.RUNNING):
        await asyncio.wait([starting], timeout=0.02)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert await spawner.poll() is None  # else the hub would not stop it
    assert site.only_lease().state is State.RUNNING
    await spawner.stop()
    assert site.only_lease().reason.code is Code.STOPPED
    assert processes_of(spawner) == frozenset()


async def test_two_servers_of_one_person_are_two(site):
    first, second = site.spawner(), site.spawner(name="second")
    await start(first, WHOLE)
    await start(second, WHOLE)
    assert first.log_file != second.log_file
    assert first.home_dir == second.home_dir
    await first.stop()
    assert await second.poll() is None
    assert {lease.key.server: lease.state for lease in site.leases} == {
        "": State.ENDED, "second": State.RUNNING,
    }  # fmt: skip
