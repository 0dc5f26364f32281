"""GPULocalSpawner: servers as processes of the hub's machine, for the demo and without GPU.

It hands out simulated GPUs only. A process of the hub's own user sees every device of the
machine whatever its variables say, so a real GPU is refused.
"""

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn

from jupyterhub.spawner import SimpleLocalProcessSpawner
from jupyterhub.utils import random_port, url_path_join
from traitlets import Unicode, default

from gpuspawner.domain.choices import Choice
from gpuspawner.domain.leases import Evidence, Lease, Source
from gpuspawner.domain.reasons import Code, RefusedError, reason
from gpuspawner.engines.environment import gpu_environment, without_ours
from gpuspawner.engines.look import EngineUnknownError, Finished, Look, Running, evidence_of
from gpuspawner.engines.naming import safe_part
from gpuspawner.engines.process.child import Child
from gpuspawner.engines.process.folders import last_lines, make_private
from gpuspawner.engines.process.marks import LEADER, LEASE, SERVER, marks_of
from gpuspawner.engines.process.runtime import ProcessRuntime
from gpuspawner.engines.process.server import ServerProcesses
from gpuspawner.ledger.store import LedgerAwayError
from gpuspawner.spawners.base import GPUSpawner
from gpuspawner.spawners.waiting import answers, until_it_answers

# Secrets of the hub, whatever a site keeps; and our marks, which only we give.
_NOT_PASSED: Final = frozenset({
    "JUPYTERHUB_CRYPT_KEY", "CONFIGPROXY_AUTH_TOKEN", "GPUSPAWNER_LEDGER_URL",
    SERVER, LEASE, LEADER,
})  # fmt: skip
_STATE: Final = "run_id"


class GPULocalSpawner(GPUSpawner, SimpleLocalProcessSpawner):
    """Runs each server as a process, with a share of a simulated GPU, or without one."""

    engine_name = "process"

    home_dir_template = Unicode(
        "gpuspawner-homes/{safe_user}",
        config=True,
        help="""
        Each person's home, a folder that only the hub's user may enter, kept over stops. A
        relative one is in the hub's working directory. ``{safe_user}`` (``{username}`` likewise)
        is a form of the name that is different for each user and safe in a path.
        """,
    )

    port: Any
    _chose_port = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Know of no process yet."""
        super().__init__(*args, **kwargs)
        self._runtime = ProcessRuntime()
        self._processes = ServerProcesses(self._runtime)

    @default("cmd")
    def _default_cmd(self):
        # The hub's own Python has what it takes; its scripts need not be in anybody's PATH.
        return [sys.executable, "-m", "jupyterhub.singleuser"]

    @default("home_dir")
    def _default_home_dir(self):
        name = safe_part(self.user.name)
        return str(Path(self.home_dir_template.format(username=name, safe_user=name)).absolute())

    @property
    def log_file(self) -> Path:
        """Where the output of the server's present or last run is."""
        name = safe_part(self.user.name)
        if self.name:
            name += f"--{safe_part(self.name)}"
        return Path(self.home_dir).parent / ".gpuspawner-logs" / f"{name}.log"

    def get_env(self):
        """Return what a server's process gets: nothing that only the hub may know."""
        given = super().get_env()
        return {name: value for name, value in given.items() if name not in _NOT_PASSED}

    def get_args(self):
        """Return upstream's arguments; root is told that it may (hub facts H16)."""
        given = list(super().get_args())
        if os.geteuid() == 0 and "--allow-root" not in given:
            given.append("--allow-root")
        return given

    # What the hub keeps for us: a hint, since it is saved only after a start (hub facts H14).

    def load_state(self, state: dict[str, Any]) -> None:
        """Take up the process that an earlier hub started."""
        super().load_state(state)
        if _STATE in state:
            self._processes.take_up(state[_STATE])

    def get_state(self) -> dict[str, Any]:
        """Return which process it is, told from a later one with the same number."""
        state: dict[str, Any] = super().get_state()
        if self._processes.run_id:
            state[_STATE] = self._processes.run_id
        return state

    def clear_state(self) -> None:
        """Forget a process that has ended; one that runs on is still ours to end."""
        super().clear_state()
        self._processes.forget()

    async def get_url(self) -> str:
        """Return the server's address as its process was told; the database may not know it."""
        try:
            url = await self._in_lane(self._processes.url, self.key)
        except EngineUnknownError as error:
            self.log.warning("%s: its address is not known now: %s", self._log_name, error)
            url = ""
        return url or await super().get_url()

    # Making and starting a process.

    async def _acquire(self, choice: Choice) -> Lease | None:
        if choice.profile.mode is not None:
            hosts = await self._site.books(self.key.lane, self._simulated)
            if hosts and not any(hosts.values()):
                _refuse_real(*hosts)
        return await super()._acquire(choice)

    async def _launch(self, _choice: Choice, lease: Lease | None) -> tuple[str, int]:
        site, lane = self._site, self.key.lane
        if lease is not None:
            simulated = await site.books(lane, self._simulated)
            real = [item.host_id for item in lease.slices if not simulated.get(item.host_id)]
            if real:
                _refuse_real(*real)
        async with site.slot():
            self._tell(60, self._reader().text("Starting your server"))
            if self.port == 0 or self._chose_port:
                self.port, self._chose_port = random_port(), True
            # On the event loop: upstream's environment reads the hub's database.
            child = await self._in_lane(self._make, self._command(), self._environment(lease))
            if lease is not None:
                await site.books_in_slot(lane, site.broker.bind, lease, child.run_id, site.now())
            await self._in_lane(self._let_go, child)
            self.log.info("%s is process %d", self._log_name, self.pid)
            look = await self._look()
            if not isinstance(look, Running):
                await self._died()
            elif lease is not None:
                await site.books_in_slot(lane, site.broker.run, lease, look.started_at, site.now())
        self._tell(80, self._reader().text("Waiting for JupyterLab to answer"))
        await until_it_answers(self._answers, self._check, int(self.http_timeout))
        await self._check()  # else it was somebody else who answered at this port
        return self._host, self.port

    @property
    def _host(self) -> str:
        return self.ip or "127.0.0.1"

    def _simulated(self) -> Mapping[str, bool]:
        """Say of each host whether its GPUs are simulated. Blocks."""
        with self._site.broker.ledger.read() as books:
            return {host.host_id: host.simulated for host in books.hosts()}

    def _command(self) -> list[str]:
        command = [*self.cmd, *self.get_args()]
        if self.shell_cmd:
            return [*self.shell_cmd, shlex.join(command)]
        return command

    def _environment(self, lease: Lease | None) -> dict[str, str]:
        slices = lease.slices if lease is not None else ()
        uuids = ",".join(item.uuid for item in slices)
        return {
            **without_ours(self.get_env()),
            **gpu_environment(slices),
            # No real GPU's: with or without a lease, frameworks find none.
            "CUDA_VISIBLE_DEVICES": uuids,
            **marks_of(self.key, lease),
        }

    def _make(self, command: list[str], environment: dict[str, str]) -> Child:
        """Make the process, which waits to be let go. Blocks."""
        if self._given_up:
            raise RefusedError(reason(Code.GIVEN_UP))
        home = Path(self.home_dir)
        make_private(home)
        try:
            with self._site.steps.around("process:make"):
                child = self._processes.make(
                    command,
                    environment=environment,
                    folder=home,
                    log=self.log_file,
                    settings=self.popen_kwargs,
                )
        except OSError as error:
            raise RefusedError(reason(Code.START_FAILED, detail=str(error)[:500])) from error
        self.pid = child.identity.pid
        return child

    def _let_go(self, child: Child) -> None:
        with self._site.steps.around("process:let-go"):
            child.let_go()

    async def _answers(self) -> bool:
        path = url_path_join(self.server.base_url, "api")
        return await answers(self._host, self.port, path, tls=self.internal_ssl)

    async def _check(self) -> None:
        if not isinstance(await self._look(), Running):
            await self._died()

    async def _died(self) -> None:
        evidence = evidence_of(await self._look())
        log = await self._in_lane(last_lines, self.log_file)
        if self.api_token:
            log = log.replace(self.api_token, "[token]")
        exit_code = evidence.exit_code if evidence else None
        raise RefusedError(reason(Code.DIED_AT_BOOT, exit_code=exit_code, log=log))

    # Looking at it, and its end.

    async def _in_lane(self, call: Any, *args: Any) -> Any:
        return await self._site.lanes.run(self.key.lane, call, *args)

    async def _look(self) -> Look:
        look: Look = await self._in_lane(self._processes.look, self.key)
        if isinstance(look, Finished) and look.evidence.source is Source.LAST_SEEN:
            return replace(look, evidence=await self._last_seen(look))
        return look

    async def _last_seen(self, look: Finished) -> Evidence:
        """Complete the end of a server that no hub saw by what the books know of it."""
        try:
            lease = await self._living()
        except LedgerAwayError:
            return look.evidence
        if lease is None or lease.run_id != look.run_id:
            return look.evidence
        times = (look.evidence.finished_at, lease.last_seen_at, lease.running_at)
        return replace(look.evidence, finished_at=max(filter(None, times), default=None))

    async def _halt(self, *, now: bool, clear: bool) -> dict[str, Evidence]:  # noqa: ARG002 - a process leaves nothing to clear
        return await self._in_lane(self._end_all, now)

    async def _tidy(self) -> None:
        await self._in_lane(self._end_all, True)

    def _end_all(self, now: bool) -> dict[str, Evidence]:
        with self._site.steps.around("process:end"):
            return self._processes.end(self.key, now=now)

    def _absence(self, lease: Lease) -> Evidence:
        evidence = evidence_of(self._runtime.look(lease))
        if evidence is None:
            raise EngineUnknownError(f"process {lease.run_id} runs, and was to be absent")
        return evidence


def _refuse_real(*hosts: str) -> NoReturn:
    names = ", ".join(sorted(set(hosts)))
    why = (
        f"GPULocalSpawner hands out simulated GPUs only, and those of {names} are real: a process "
        "sees every GPU of its machine. Use gpu-docker."
    )
    raise RefusedError(reason(Code.SITE_SETTING, setting="JupyterHub.spawner_class", why=why))
