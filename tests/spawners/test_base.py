"""The mixin's part in a start, on a real ledger; the engine is a script (H7, H12, H14)."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from gpuspawner.broker.invariants import broken_promises
from gpuspawner.domain.leases import Lease, State
from gpuspawner.domain.reasons import Code
from gpuspawner.engines.look import (
    EngineRefusedError,
    EngineUnknownError,
    Look,
    Made,
)
from gpuspawner.spawners.refusals import Refusal
from tests.spawners.scripted import ABSENT, FINISHED, WHOLE, Scripted


@pytest.fixture
def spawner(make_site: Callable[..., Any], broker: Any) -> Any:
    site = make_site()
    spawner = Scripted(
        user=SimpleNamespace(
            name="ada", url="/user/ada/", escaped_name="ada",
            settings={"gpuspawner_site": site}, orm_user=SimpleNamespace(groups=[]),
        ),
        hub=SimpleNamespace(public_host="", base_url="/hub/"),
        orm_spawner=SimpleNamespace(name="", user_options={}, server=None, state={}),
    )  # fmt: skip
    spawner.user_options = WHOLE
    yield spawner
    assert broken_promises(broker.ledger) == []
    for lanes in (site.lanes, site.pulls, site._books):
        lanes.close()


@pytest.fixture
def only_lease(broker: Any) -> Callable[[], Lease]:
    def read() -> Lease:
        with broker.ledger.read() as books:
            (lease,) = books.recent()
        return lease

    return read


async def begin(spawner: Scripted) -> asyncio.Task[Any]:
    spawner.clear_state()
    task = asyncio.create_task(spawner.start())
    await asyncio.wait_for(spawner.launching.wait(), 20)
    return task


async def run(spawner: Scripted) -> None:
    task = await begin(spawner)
    spawner.go.set()
    assert await task == ("172.30.0.2", 8888)


async def test_while_a_start_runs_the_hub_believes_that_we_run(spawner: Scripted) -> None:
    task = await begin(spawner)
    assert spawner.look is ABSENT
    assert await spawner.poll() is None
    spawner.go.set()
    await task
    assert await spawner.poll() is None
    spawner.look = FINISHED
    assert await spawner.poll() == 3


@pytest.mark.proves("R2")
async def test_a_cancelled_start_awaits_its_stop_and_gives_nothing_up(
    spawner: Scripted, only_lease: Callable[[], Lease]
) -> None:
    """The hub stops only what polls as running; the lease is held until that stop (H7)."""
    task = await begin(spawner)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await spawner.poll() is None
    assert only_lease().state is State.GRANTED

    await spawner.stop()

    assert await spawner.poll() == 0
    lease = only_lease()
    assert lease.state is State.ENDED
    assert lease.reason is not None
    assert lease.reason.code is Code.STOPPED
    assert lease.detached_at is not None


async def test_a_start_after_a_cancelled_one_that_nobody_stopped(spawner: Scripted) -> None:
    """A hub that forgot the stop must not make the next server immortal."""
    task = await begin(spawner)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await run(spawner)
    spawner.look = FINISHED
    assert await spawner.poll() == 3


async def test_a_page_that_comes_before_the_start_sees_this_start_and_not_the_last(
    spawner: Scripted,
) -> None:
    """Hooks may run for seconds between the click and `start`; its page listens already."""
    await run(spawner)
    spawner.look = FINISHED
    await spawner.poll()
    spawner.launching.clear()
    spawner.clear_state()  # the first thing the hub does of a spawn
    reader = spawner.progress()
    first = asyncio.create_task(anext(reader))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert not first.done()

    task = asyncio.create_task(spawner.start())

    assert (await asyncio.wait_for(first, 20))["message"] == "Choosing a place for your server"
    await task
    rest = [event.get("message") async for event in reader]
    assert rest[0].startswith("You have: ")
    assert rest[1:] == ["launching"]


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (EngineUnknownError("a mount failed", answered=True), Code.CREATE_FAILED, 500),
        (EngineRefusedError("bad option", 400), Code.CREATE_FAILED, 500),
        (KeyError("a bug"), Code.INTERNAL, 500),
        (TimeoutError(), Code.INTERNAL, 500),
    ],
)
async def test_every_failure_is_a_refusal_and_gives_the_slice_back(
    spawner: Scripted, only_lease: Callable[[], Lease], error: Exception, code: Code, status: int
) -> None:
    """A bare error would count towards the limit at which a hub ends itself (H6)."""
    spawner.launch_fails = error
    spawner.go.set()
    with pytest.raises(Refusal) as refusal:
        await spawner.start()
    assert (refusal.value.reason, refusal.value.status_code) == (str(code), status)
    assert only_lease().state is State.ENDED
    assert only_lease().reason.code is code  # type: ignore[union-attr]
    assert spawner.halts == [True, True]
    assert await spawner.poll() == 0


@pytest.mark.proves("R2", "R3")
async def test_a_call_without_answer_keeps_the_slice_until_it_must_be_over(
    spawner: Scripted, only_lease: Callable[[], Lease]
) -> None:
    """The engine may still make the container, after a look that found none (H8)."""
    spawner.launch_fails = EngineUnknownError("silence")
    spawner.go.set()
    with pytest.raises(Refusal) as refusal:
        await spawner.start()
    assert refusal.value.status_code == 503
    lease = only_lease()
    assert (lease.state, lease.finished_source) == (State.ENDING, None)
    assert lease.slices
    assert lease.look_again_at is not None
    # Neither the hub's own look nor a stop ends it early.
    assert await spawner.poll() == 0
    await spawner.stop()
    assert only_lease().state is State.ENDING
    # A new start is told that the earlier one is not over.
    with pytest.raises(Refusal) as second:
        await spawner.start()
    assert second.value.why.code is Code.SERVER_HOLDS


async def test_a_failure_that_cannot_be_undone_is_left_to_the_agent(
    spawner: Scripted, only_lease: Callable[[], Lease]
) -> None:
    task = await begin(spawner)
    spawner.launch_fails = EngineUnknownError("silence")
    spawner.halt_fails = EngineUnknownError("silence")
    spawner.go.set()
    with pytest.raises(Refusal):
        await task
    lease = only_lease()
    assert lease.state is State.ENDING
    assert lease.look_again_at is not None
    assert lease.look_again_at > datetime.now(UTC)
    assert lease.slices


async def test_a_stop_that_the_engine_does_not_answer_is_told_and_left_to_the_agent(
    spawner: Scripted, only_lease: Callable[[], Lease]
) -> None:
    await run(spawner)
    spawner.halt_fails = EngineUnknownError("silence")
    with pytest.raises(EngineUnknownError):
        await spawner.stop()
    assert only_lease().state is State.ENDING
    assert await spawner.poll() is None
    spawner.halt_fails = None
    await spawner.stop()
    assert only_lease().state is State.ENDED


@pytest.mark.proves("P2", "R3")
@pytest.mark.parametrize("error", [EngineUnknownError("silence"), KeyError("a bug")])
async def test_unknown_is_not_stopped(
    spawner: Scripted, only_lease: Callable[[], Lease], error: Exception
) -> None:
    await run(spawner)
    spawner.look = error
    assert [await spawner.poll() for _ in range(3)] == [None] * 3
    assert only_lease().state is State.RUNNING
    spawner.look = FINISHED
    assert await spawner.poll() == 3
    assert only_lease().state is State.ENDED


@pytest.mark.parametrize(
    ("look", "tidied", "status"), [(FINISHED, 1, 3), (Made(run_id="c1"), 1, 0), (ABSENT, 0, 0)]
)
async def test_an_end_that_is_seen_ends_the_lease(
    spawner: Scripted,
    only_lease: Callable[[], Lease],
    look: Look,
    tidied: int,
    status: int,
) -> None:
    await run(spawner)
    spawner.look = look
    assert await spawner.poll() == status
    assert spawner.tidied == tidied
    assert only_lease().state is State.ENDED


async def test_a_poll_never_raises(spawner: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub takes an exception for stopped; this server has ended, and that is the answer."""
    await run(spawner)
    spawner.look = FINISHED

    async def fail() -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(spawner, "_tidy", fail)
        assert await spawner.poll() == 3
    spawner.look = FINISHED
    assert await spawner.poll() == 3


async def test_a_rename_is_refused_while_something_is_held_or_unknown(spawner: Scripted) -> None:
    await spawner.rename("a", "b")
    spawner.look = EngineUnknownError("silence")
    with pytest.raises(Refusal) as refusal:
        await spawner.rename("a", "b")
    assert refusal.value.status_code == 409
    spawner.look = FINISHED
    with pytest.raises(Refusal):
        await spawner.rename("a", "b")
    await run(spawner)
    with pytest.raises(Refusal) as refusal:
        await spawner.rename("a", "b")
    assert refusal.value.reason == "server-holds"
