"""Lanes: blocking calls for one server stay in order, and nobody waits for another server.

DockerSpawner's single thread keeps calls in order by making everybody wait. With several threads
and no order a poll could overtake a create and say "stopped" of a container that is about to
appear (hub facts H8). So each server has a lane, and lanes share a bounded pool of threads.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


class Lanes:
    """Runs blocking calls in threads, one after the other within a lane.

    A caller that is cancelled does not take its call with it: the call goes on, and the next one
    of its lane still waits for it.
    """

    def __init__(self, threads: int = 8, name: str = "engine") -> None:
        """Make a pool of so many threads."""
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._last: dict[str, asyncio.Task[object]] = {}

    async def run(self, lane: str, call: Callable[..., Result], *args: object) -> Result:
        """Run ``call(*args)`` in a thread when everything before it in this lane is over."""
        before = self._last.get(lane)
        task = asyncio.create_task(self._after(before, call, *args))
        self._last[lane] = task
        task.add_done_callback(lambda done: self._forget(lane, done))
        return await asyncio.shield(task)

    def is_busy(self, lane: str) -> bool:
        """Whether a call of this lane is under way or waits."""
        return lane in self._last

    def close(self) -> None:
        """Let running calls end and take no more."""
        self.pool.shutdown(wait=False, cancel_futures=True)

    async def _after(
        self, before: asyncio.Task[object] | None, call: Callable[..., Result], *args: object
    ) -> Result:
        if before is not None:
            await asyncio.wait([before])
        return await asyncio.get_running_loop().run_in_executor(self.pool, call, *args)

    def _forget(self, lane: str, done: "asyncio.Task[Result]") -> None:
        if self._last.get(lane) is done:
            del self._last[lane]
        if not done.cancelled():
            done.exception()  # seen: a caller that was cancelled will not fetch it
