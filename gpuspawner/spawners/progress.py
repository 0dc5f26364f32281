"""What the spawn page is told while a server starts."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

# A proxy cuts a silent stream; the page's progress API is looked at only between two events.
HEARTBEAT_SECONDS: Final = 10.0


class Progress:
    """The steps of one start, for any number of readers, each from the beginning."""

    def __init__(self) -> None:
        """Begin with no step."""
        self._steps: list[tuple[int, str]] = []
        self._said = ""
        self._changed = asyncio.Event()
        self._over = False

    def tell(self, percent: int, message: str) -> None:
        """Add a step; the same text as before changes the number only."""
        self._steps.append((percent, "" if message == self._said else message))
        self._said = message
        self._wake()

    def finish(self) -> None:
        """Say that no step follows."""
        self._over = True
        self._wake()

    @property
    def is_over(self) -> bool:
        """Whether no step follows."""
        return self._over

    async def follow(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the steps as JupyterHub's progress events; a heartbeat has no text."""
        read = 0
        while True:
            changed = self._changed
            while read < len(self._steps):
                percent, message = self._steps[read]
                read += 1
                yield _event(percent, message)
            if self._over:
                return
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await changed.wait()
            except TimeoutError:
                percent = self._steps[-1][0] if self._steps else 0
                yield _event(percent, "")

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _event(percent: int, message: str) -> dict[str, Any]:
    event: dict[str, Any] = {"progress": percent}
    if message:
        event["message"] = message
    return event
