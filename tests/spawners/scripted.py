"""A spawner whose engine is a script."""

import asyncio
from datetime import UTC, datetime
from typing import Any

from jupyterhub.spawner import Spawner

from gpuspawner.domain.leases import Evidence, Lease, Source
from gpuspawner.engines.look import (
    Absent,
    Finished,
    Look,
    Running,
)
from gpuspawner.spawners.base import GPUSpawner

WHOLE = {"profile": "h100"}
NEVER = Evidence(source=Source.NEVER_RAN)
EXITED = Evidence(source=Source.ENGINE, finished_at=datetime(2026, 9, 1, tzinfo=UTC), exit_code=3)
FINISHED = Finished(run_id="c1", evidence=EXITED)
ABSENT = Absent(evidence=NEVER)


class Scripted(GPUSpawner, Spawner):
    """A sibling whose engine says what the test wants."""

    engine_name = "docker"

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.look: Look | Exception = ABSENT
        self.halts: list[bool] = []
        self.halt_fails: Exception | None = None
        self.tidied = 0
        self.launching = asyncio.Event()
        self.go = asyncio.Event()
        self.launch_fails: BaseException | None = None
        self.leases: list[Lease | None] = []

    async def _launch(self, choice: Any, lease: Lease | None) -> tuple[str, int]:
        self.leases.append(lease)
        self._tell(60, "launching")
        self.launching.set()
        await self.go.wait()
        if self.launch_fails:
            raise self.launch_fails
        self.look = Running(run_id="c1", started_at=datetime.now(UTC))
        if lease is not None:
            self._site.broker.bind(lease, "c1", self._site.now())
            self._site.broker.run(lease, datetime.now(UTC), self._site.now())
        return "172.30.0.2", 8888

    async def _look(self) -> Look:
        if isinstance(self.look, Exception):
            raise self.look
        return self.look

    async def _halt(self, *, now: bool, clear: bool) -> dict[str, Evidence]:
        self.halts.append(clear)
        if self.halt_fails:
            raise self.halt_fails
        self.look = ABSENT
        return {}

    async def _tidy(self) -> None:
        self.tidied += 1
        self.look = ABSENT

    def _absence(self, lease: Lease) -> Evidence:
        return NEVER
