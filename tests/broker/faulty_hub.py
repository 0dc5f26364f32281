"""A hub whose spawners are the real ones, and whose every call is a step that the test allows.

JupyterHub itself is played: which servers its database knows, and in which order it calls a
spawner's ``start``, ``poll`` and ``stop`` (hub facts H7 and H14). A hub that dies goes no further.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

from dockerspawner import DockerSpawner
from jupyterhub import orm

from gpuspawner.domain.policy import Policy
from gpuspawner.domain.reasons import Code
from gpuspawner.ledger.store import Ledger
from gpuspawner.spawners import docker as docker_module
from gpuspawner.spawners.docker import GPUDockerSpawner
from gpuspawner.spawners.refusals import Refusal
from gpuspawner.spawners.site import Site
from tests.broker.faulty_engine import Clock, FaultyClient, FaultyEngine
from tests.broker.faulty_steps import DeadError, FaultySteps, Gate, StepLanes

ALL: Final = 10_000  # more steps than anything takes
START_SECONDS: Final = 300
GROUPS: Final = {"ada": ("ml101",), "ben": ("ml101",), "cho": ("vis202",)}


class HubSite(Site):
    """The real site, by the machine's clock."""

    clock: Clock

    def now(self) -> datetime:  # type: ignore[override]
        return self.clock.now


class Server(GPUDockerSpawner):
    """The real spawner, whose servers have an address without a network."""

    async def _address(self) -> tuple[str, int]:
        return "127.0.0.1", 8888


async def _upstreams_request(spawner: Any) -> None:
    """Ask for a container as DockerSpawner does, which needs a whole hub for it."""
    name = f"jupyter-{spawner.user.name}"
    await spawner.docker("create_container", name=name, image=spawner.image, host_config={})


async def _answers_at_once(
    _answers: object, check: Callable[[], Awaitable[None]], _seconds: int
) -> None:
    await check()


@contextmanager
def patched() -> Iterator[None]:
    """Let requests need no hub, and servers answer as soon as they run: there is no network."""
    with (
        mock.patch.object(docker_module, "until_it_answers", _answers_at_once),
        mock.patch.object(DockerSpawner, "create_object", _upstreams_request),
    ):
        yield


class Hub:
    """One hub process. ``database`` is what a hub finds at its start: servers and their state."""

    def __init__(
        self, engine: FaultyEngine, url: str, policy: Policy, database: dict[str, dict[str, Any]]
    ) -> None:
        self.steps = FaultySteps()
        self.ledger = Ledger(url, steps=self.steps)
        self.database = database
        self.errors: list[Exception] = []  # those that nobody expects
        self.refusals: list[object] = []
        self._clock = engine.clock
        self._loop = asyncio.new_event_loop()
        self._gate = Gate()
        self._site = self._make_site(engine, policy)
        self.servers: dict[str, Server] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._starts: dict[str, tuple[asyncio.Task[None], datetime]] = {}
        self._begin("", self._find_servers())

    def _make_site(self, engine: FaultyEngine, policy: Policy) -> Site:
        site = HubSite(
            hub_id="hub", policy=policy, ledger=self.ledger, concurrent_starts=10,
            engine=FaultyClient(engine, "hub", self.steps), steps=self.steps,
        )  # fmt: skip
        site.clock = self._clock
        site.lanes, site.pulls, site._books = (StepLanes(self._gate) for _ in range(3))
        return site

    def _make(self, user: str) -> Server:
        groups = [SimpleNamespace(name=name) for name in GROUPS[user]]
        return Server(
            user=SimpleNamespace(
                name=user, url=f"/user/{user}/", escaped_name=user,
                settings={"gpuspawner_site": self._site}, orm_user=SimpleNamespace(groups=groups),
            ),
            hub=SimpleNamespace(public_host="", base_url="/hub/"),
            orm_spawner=SimpleNamespace(
                name="", user_options={},
                server=orm.Server(
                    proto="http", ip="", port=1, base_url=f"/user/{user}/", cookie_name="x"
                ),
            ),
            pull_policy="skip", start_timeout=START_SECONDS,
        )  # fmt: skip

    # --- its life -------------------------------------------------------------------------

    @property
    def is_dead(self) -> bool:
        return self.steps.is_dead

    def is_running(self) -> bool:
        """Whether one of its own steps is what asks."""
        return self._loop.is_running()

    def go_on(self, steps: int = ALL, pick: int = 0) -> None:
        """Let so many calls pass, the first ones unless another is picked."""
        if self.is_running():
            return  # it is what lets others go on
        for _ in range(steps):
            if self.is_dead or not self._gate.waiting:
                break
            self._gate.open(pick)
            self._run()
        if self.errors:
            raise self.errors[0]

    def kill(self) -> None:
        """End as a killed process does, and leave no trace of it but what it wrote."""
        self.steps.is_dead = True
        for task in asyncio.all_tasks(self._loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            task.get_coro().close()  # type: ignore[union-attr]
        self._loop.close()
        self.ledger.close()
        for lanes in (self._site.lanes, self._site.pulls, self._site._books):
            lanes.close()

    def terminate(self, steps: int) -> None:
        """End in order, as far as it gets: starts are cancelled, servers stay (H7)."""
        for task, _ in self._starts.values():
            task.cancel()
        self._run()
        self.go_on(steps)
        self.kill()

    def _begin(self, user: str, work: Any) -> None:
        task = self._loop.create_task(self._noted(user, work))
        self.tasks[user] = task
        self._run()

    async def _noted(self, user: str, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - the machine tells
            self.errors.append(error)
        except DeadError:
            return
        finally:
            if not self.is_dead and self.tasks.get(user) is asyncio.current_task():
                del self.tasks[user]

    def _run(self) -> None:
        """Run until everybody waits: for the gate, or for somebody who does."""

        async def spin() -> None:
            for _ in range(15):
                await asyncio.sleep(0)

        self._loop.run_until_complete(spin())

    # --- what JupyterHub does -------------------------------------------------------------

    def start(self, user: str, profile: str) -> None:
        """Begin a start; its owner has no server, and nothing else is under way for them."""
        server = self.servers[user] = self._make(user)
        self.database[user] = {}
        server.user_options = {"profile": profile}
        server.clear_state()
        self._begin(user, self._start(user, server))
        if user in self.tasks:
            self._starts[user] = (self.tasks[user], self._clock.now)

    async def _start(self, user: str, server: Server) -> None:
        try:
            await server.start()
        except Refusal as refusal:
            self.refusals.append(refusal.why.code)
            await self._stop(user)
            if refusal.why.code is Code.INTERNAL:
                raise (refusal.__cause__ or refusal) from None
        else:
            self.database[user] = server.get_state()

    def cancel(self, user: str) -> None:
        """Cancel a start, as a DELETE and a ``start_timeout`` do."""
        start, _ = self._starts.pop(user)
        start.cancel()
        self._run()
        self._begin(user, self._stop_after(user, start))

    async def _stop_after(self, user: str, start: asyncio.Task[None]) -> None:
        await asyncio.wait([start])
        if user in self.servers:  # else it ended by itself at the last moment
            await self._stop(user)

    def cancel_old(self) -> None:
        """Cancel the starts whose time is over."""
        for user, (task, since) in list(self._starts.items()):
            if task.done():
                del self._starts[user]
            elif (self._clock.now - since).total_seconds() > START_SECONDS:
                self.cancel(user)

    def is_starting(self, user: str) -> bool:
        return user in self._starts and not self._starts[user][0].done()

    def stop(self, user: str) -> None:
        """Begin a stop."""
        self._begin(user, self._stop(user))

    async def _stop(self, user: str) -> None:
        server = self.servers[user]
        try:
            if await server.poll() is None:
                await server.stop()
        except Exception as error:  # noqa: BLE001 - the hub logs it
            self.refusals.append(type(error).__name__)
        finally:
            if not self.is_dead:
                self._forget(user)

    def poll(self, user: str) -> None:
        """Begin a poll, as the hub makes one every few seconds."""
        self._begin(user, self._poll(user))

    async def _poll(self, user: str) -> None:
        server = self.servers[user]
        if await server.poll() is not None and await server.poll() is not None:
            self._forget(user)

    async def _find_servers(self) -> None:
        for user, state in list(self.database.items()):
            server = self.servers[user] = self._make(user)
            server.load_state(state)
            await self._poll(user)
            if user in self.servers:
                self.database[user] = server.get_state()

    def _forget(self, user: str) -> None:
        self.servers.pop(user, None)
        self.database.pop(user, None)
