"""Lanes: in order within one, nobody waits for another, and no call is lost."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from gpuspawner.engines.lanes import Lanes


@pytest.fixture
def lanes() -> Iterator[Lanes]:
    lanes = Lanes(2, "test")
    yield lanes
    lanes.close()


class Gate:
    """A call that says when it has begun, and waits to be let on."""

    def __init__(self, log: list[str], name: str) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()
        self._log, self._name = log, name

    def __call__(self) -> str:
        self.begun.set()
        assert self.go.wait(20)
        self._log.append(self._name)
        return self._name

    async def has_begun(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, 20)


async def test_calls_of_one_lane_keep_their_order(lanes: Lanes) -> None:
    log: list[str] = []
    first = Gate(log, "first")
    tasks = [asyncio.create_task(lanes.run("ada", first))]
    tasks += [asyncio.create_task(lanes.run("ada", log.append, str(n))) for n in range(20)]
    await first.has_begun()
    assert log == []  # though a second thread is free

    first.go.set()
    await asyncio.gather(*tasks)

    assert log == ["first", *map(str, range(20))]


async def test_a_call_that_hangs_delays_nobody_else(lanes: Lanes) -> None:
    log: list[str] = []
    slow = Gate(log, "slow")
    task = asyncio.create_task(lanes.run("ada", slow))
    await slow.has_begun()

    assert await lanes.run("ben", lambda: "ben's") == "ben's"
    assert await lanes.run("cho", lambda: "cho's") == "cho's"

    slow.go.set()
    assert await task == "slow"


async def test_a_cancelled_caller_does_not_cancel_the_call(lanes: Lanes) -> None:
    """A create that was given up still happens, and the next look comes after it (H8)."""
    log: list[str] = []
    create = Gate(log, "create")
    caller = asyncio.create_task(lanes.run("ada", create))
    await create.has_begun()

    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    look = asyncio.create_task(lanes.run("ada", log.append, "look"))
    assert lanes.is_busy("ada")
    create.go.set()
    await look

    assert log == ["create", "look"]


async def test_a_caller_cancelled_before_its_turn_still_gets_its_call_done(lanes: Lanes) -> None:
    log: list[str] = []
    first = Gate(log, "first")
    task = asyncio.create_task(lanes.run("ada", first))
    second = asyncio.create_task(lanes.run("ada", log.append, "second"))
    await first.has_begun()
    second.cancel()
    last = asyncio.create_task(lanes.run("ada", log.append, "last"))
    first.go.set()
    await asyncio.gather(task, last)
    assert log == ["first", "second", "last"]


async def test_an_error_is_the_callers_and_the_lane_goes_on(lanes: Lanes) -> None:
    def fail() -> None:
        raise LookupError("mine")

    results = await asyncio.gather(
        lanes.run("ada", fail), lanes.run("ada", lambda: "next"), return_exceptions=True
    )

    assert isinstance(results[0], LookupError)
    assert results[1] == "next"


async def test_an_error_that_nobody_fetches_makes_no_noise(lanes: Lanes) -> None:
    """Its caller was cancelled; the loop must not complain of a lost exception."""
    heard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: heard.append(context))
    log: list[str] = []
    gate = Gate(log, "x")

    def fail() -> None:
        gate()
        raise LookupError("nobody's")

    caller = asyncio.create_task(lanes.run("ada", fail))
    await gate.has_begun()
    caller.cancel()
    gate.go.set()
    await lanes.run("ada", lambda: None)
    del caller
    assert heard == []


async def test_threads_are_bounded(lanes: Lanes) -> None:
    at_once, most = 0, 0
    lock = threading.Lock()
    both = threading.Barrier(2, timeout=20)

    def work() -> None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        both.wait()
        with lock:
            at_once -= 1

    await asyncio.gather(*(lanes.run(f"user{n}", work) for n in range(20)))

    assert most == 2


async def test_a_lane_that_is_done_is_forgotten(lanes: Lanes) -> None:
    await asyncio.gather(*(lanes.run(f"user{n}", int) for n in range(50)))
    await asyncio.gather(*(lanes.run("ada", int) for _ in range(5)))
    await asyncio.sleep(0)
    assert lanes._last == {}
    assert not lanes.is_busy("ada")


async def test_after_close_nothing_begins(lanes: Lanes) -> None:
    lanes.close()
    with pytest.raises(RuntimeError):
        await lanes.run("ada", int)
