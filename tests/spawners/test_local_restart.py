"""GPULocalSpawner after a restart of its hub, and while nothing can be known."""

import os
import signal

import pytest

from gpuspawner.domain.leases import Source, State
from gpuspawner.domain.reasons import Code
from gpuspawner.engines.look import EngineUnknownError
from gpuspawner.ledger.store import LedgerAwayError
from tests.spawners.local_site import (
    CPU,
    WHOLE,
    open_site,
    processes_of,
    start,
)


@pytest.fixture
async def site(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with open_site(tmp_path) as site:
        yield site


async def test_unknown_is_not_gone(site, monkeypatch):
    spawner = site.spawner()
    await start(spawner, WHOLE)
    state = spawner.get_state()
    site.restart()
    later = site.spawner()
    later.load_state(state)

    def hidden(*_args):
        raise EngineUnknownError("no /proc")

    monkeypatch.setattr(later._runtime.table, "_read", hidden)
    assert await later.poll() is None
    with pytest.raises(EngineUnknownError):
        await later.stop()
    assert (await later.get_url()).endswith(":1/user/ada/")
    assert site.only_lease().state is State.ENDING
    monkeypatch.undo()
    await later.stop()
    assert site.only_lease().state is State.ENDED
    assert site.only_lease().reason.code is Code.STOPPED


# After a restart of the hub.


async def test_a_later_hub_takes_it_up_and_stops_it(site):
    spawner = site.spawner()
    await start(spawner, WHOLE)
    site.restart()
    later = site.spawner()
    later.load_state(spawner.get_state())
    assert await later.poll() is None
    assert site.only_lease().state is State.RUNNING
    await later.stop()
    lease = site.only_lease()
    assert (lease.state, lease.finished_source) == (State.ENDED, Source.ENGINE)
    assert processes_of(spawner) == frozenset()


@pytest.mark.parametrize("options", [CPU, WHOLE], ids=["cpu", "gpu"])
async def test_a_later_hub_that_knows_nothing_finds_it_and_its_address(site, options):
    spawner = site.spawner()
    _, port = await start(spawner, options)
    site.restart()
    later = site.spawner()
    assert await later.poll() is None
    assert await later.get_url() == f"http://127.0.0.1:{port}/user/ada/"
    assert later.get_state()["run_id"] == spawner.get_state()["run_id"]


async def test_one_that_ended_unseen_was_last_seen_alive(site):
    spawner = site.spawner()
    await start(spawner, WHOLE)
    site.restart()
    later = site.spawner()
    later.load_state(spawner.get_state())
    os.kill(spawner.pid, signal.SIGKILL)
    spawner._processes._child.wait()
    before = site.only_lease()
    assert await later.poll() == 0
    lease = site.only_lease()
    assert (lease.state, lease.reason.code) == (State.ENDED, Code.EXITED)
    assert lease.finished_source is Source.LAST_SEEN
    assert lease.finished_at == max(before.last_seen_at, before.running_at)


async def test_one_without_lease_that_ended_unseen_needs_no_ledger(site, monkeypatch):
    spawner = site.spawner()
    await start(spawner)
    site.restart()
    later = site.spawner()
    later.load_state(spawner.get_state())
    os.kill(spawner.pid, signal.SIGKILL)
    spawner._processes._child.wait()

    def away(*_args):
        raise LedgerAwayError("away")

    monkeypatch.setattr(later._site.broker.ledger, "read", away)
    assert await later.poll() == 0
    monkeypatch.undo()


async def test_another_process_with_its_number_is_left_alone(site):
    spawner = site.spawner()
    await start(spawner, WHOLE)
    kind, pid, ticks, boot = spawner.get_state()["run_id"].split(":")
    later = site.spawner("ben")
    later.load_state({"pid": int(pid), "run_id": f"{kind}:{pid}:{int(ticks) - 1}:{boot}"})
    assert await later.poll() == 0
    await later.stop()
    assert await spawner.poll() is None


async def test_what_is_kept_is_forgotten_after_a_stop(site):
    spawner = site.spawner()
    await start(spawner)
    assert spawner.get_state()["pid"] == spawner.pid
    await spawner.stop()
    spawner.clear_state()
    assert spawner.get_state() == {}
    assert await spawner.poll() == 0
