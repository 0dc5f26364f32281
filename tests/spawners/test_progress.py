"""What a waiting page is told (H12)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpuspawner.spawners import progress
from gpuspawner.spawners.progress import Progress


async def everything(steps: Progress) -> list[dict[str, Any]]:
    return [event async for event in steps.follow()]


async def next_of(reader: AsyncIterator[dict[str, Any]]) -> dict[str, Any]:
    return await asyncio.wait_for(anext(reader), 10)


async def test_several_readers_get_every_step_in_order() -> None:
    steps = Progress()
    readers = [asyncio.create_task(everything(steps)) for _ in range(3)]
    for percent, text in ((5, "choosing"), (20, "chosen"), (60, "starting")):
        steps.tell(percent, text)
        await asyncio.sleep(0)
    steps.finish()
    expected = [
        {"progress": 5, "message": "choosing"},
        {"progress": 20, "message": "chosen"},
        {"progress": 60, "message": "starting"},
    ]
    assert await asyncio.gather(*readers) == [expected] * 3


async def test_a_late_reader_gets_all_from_the_beginning() -> None:
    steps = Progress()
    steps.tell(5, "choosing")
    early = steps.follow()
    assert await next_of(early) == {"progress": 5, "message": "choosing"}
    steps.tell(60, "starting")
    late = steps.follow()
    assert [await next_of(late), await next_of(late)] == [
        {"progress": 5, "message": "choosing"}, {"progress": 60, "message": "starting"},
    ]  # fmt: skip
    steps.finish()
    assert await everything(steps) == [
        {"progress": 5, "message": "choosing"}, {"progress": 60, "message": "starting"},
    ]  # fmt: skip
    assert [event async for event in late] == []
    assert [event async for event in early] == [{"progress": 60, "message": "starting"}]


async def test_the_same_text_is_not_repeated() -> None:
    """Each event with text adds a log line to the page."""
    steps = Progress()
    steps.tell(30, "pulling")
    steps.tell(35, "pulling")
    steps.tell(40, "pulling")
    steps.tell(60, "starting")
    steps.finish()
    assert await everything(steps) == [
        {"progress": 30, "message": "pulling"},
        {"progress": 35},
        {"progress": 40},
        {"progress": 60, "message": "starting"},
    ]


async def test_a_heartbeat_has_the_last_number_and_no_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "HEARTBEAT_SECONDS", 0.01)
    steps = Progress()
    reader = steps.follow()
    assert await next_of(reader) == {"progress": 0}
    steps.tell(30, "pulling")
    assert await next_of(reader) == {"progress": 30, "message": "pulling"}
    assert [await next_of(reader) for _ in range(3)] == [{"progress": 30}] * 3
    steps.tell(60, "starting")
    assert await next_of(reader) == {"progress": 60, "message": "starting"}
    steps.finish()
    assert [event async for event in reader] == []


def test_the_heartbeat_is_slower_than_the_steps_and_faster_than_a_proxys_patience() -> None:
    assert progress.HEARTBEAT_SECONDS == 10


async def test_a_reader_that_leaves_disturbs_nobody() -> None:
    steps = Progress()
    leaving, staying = steps.follow(), steps.follow()
    steps.tell(5, "choosing")
    assert await next_of(leaving) == await next_of(staying)
    waiting = asyncio.create_task(anext(leaving))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    steps.tell(60, "starting")
    assert await next_of(staying) == {"progress": 60, "message": "starting"}


async def test_an_end_wakes_who_waits_and_may_come_twice() -> None:
    steps = Progress()
    assert not steps.is_over
    reader = asyncio.create_task(everything(steps))
    await asyncio.sleep(0)
    steps.finish()
    steps.finish()
    assert await asyncio.wait_for(reader, 10) == []
    assert steps.is_over
