"""A real JupyterHub with its real proxy, as processes of the test."""

import os
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import psutil

from tests.rig.engine import OwnedEngine
from tests.rig.hub_api import HubAPI
from tests.rig.processes import descendants, free_port, kill_all, run_mark, wait_for
from tools.proxy.install import command as proxy_command

ROOT = Path(__file__).parents[2]
_START_SECONDS = 60
_STOP_SECONDS = 60
_SERVICE = "rig"

# Before the test's own text, which may change any of it.
_HEAD = """\
c = get_config()  # noqa
c.JupyterHub.bind_url = {bind_url!r}
c.JupyterHub.hub_ip = {hub_ip!r}
c.JupyterHub.hub_port = {hub_port}
c.JupyterHub.db_url = {db_url!r}
c.JupyterHub.cookie_secret_file = {cookie_secret_file!r}
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.admin_users = {{"admin"}}
c.ConfigurableHTTPProxy.command = {proxy!r}
c.ConfigurableHTTPProxy.api_url = {proxy_api!r}
c.ConfigurableHTTPProxy.pid_file = {proxy_pid!r}
"""

# After it: a site's own list of services or roles must not drop the rig's.
_TAIL = """
c.JupyterHub.services.append({{"name": {service!r}, "api_token": {token!r}}})
c.JupyterHub.load_roles.append(
    {{"name": {service!r}, "services": [{service!r}], "scopes": {scopes!r}}}
)
"""

_SCOPES = [
    *("admin:users", "admin:servers", "admin:services", "admin:groups", "tokens", "proxy"),
    *("access:services", "access:servers", "read:hub", "read:roles", "read:metrics", "shutdown"),
]


def docker_config(engine: OwnedEngine, network: str, image: str, spawner: str = "") -> str:
    """Return configuration for servers on this engine (plain DockerSpawner unless named)."""
    spawner = spawner or "dockerspawner.DockerSpawner"
    return f"""
c.JupyterHub.spawner_class = {spawner!r}
c.DockerSpawner.client_kwargs = {{"base_url": {engine.url!r}}}
c.DockerSpawner.image = {image!r}
c.DockerSpawner.network_name = {network!r}
c.DockerSpawner.use_internal_ip = True
c.DockerSpawner.remove = True
c.Spawner.http_timeout = 60
"""


class HubProcess(HubAPI):
    """One hub: its folder, its ports, its process, its log, and its API.

    ``hub_ip`` is where containers reach it: the gateway of their network. The folder and the
    ports stay over `restart`, so that a killed hub comes back with its database and its URL.
    """

    live: ClassVar[list["HubProcess"]] = []  # for the report of a failed test

    def __init__(
        self,
        config: str,
        directory: Path,
        *,
        hub_ip: str = "127.0.0.1",
        db_url: str | None = None,
        env: dict[str, str] | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(f"http://127.0.0.1:{free_port()}/", secrets.token_hex(16))
        self.directory = directory
        self.config_path = directory / "jupyterhub_config.py"
        self.log_path = directory / "hub.log"
        self.hub_ip = hub_ip
        self.hub_port = free_port(hub_ip)
        self._proxy_api = f"http://127.0.0.1:{free_port()}"
        self._db_url = db_url or f"sqlite:///{directory}/jupyterhub.sqlite"
        self._env = env or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._seen: set[psutil.Process] = set()
        self.write_config(config)

    def write_config(self, config: str) -> None:
        """Write the configuration that the next `start` reads."""
        head = _HEAD.format(
            bind_url=self.url,
            hub_ip=self.hub_ip,
            hub_port=self.hub_port,
            db_url=self._db_url,
            cookie_secret_file=str(self.directory / "cookie_secret"),
            proxy=proxy_command(),
            proxy_api=self._proxy_api,
            proxy_pid=str(self.directory / "proxy.pid"),
        )
        tail = _TAIL.format(service=_SERVICE, token=self.token, scopes=_SCOPES)
        self.config_path.write_text(f"{head}{config}{tail}")

    # --- life -----------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """Return the hub's process id; it must run."""
        if self._process is None:
            raise RuntimeError("the hub does not run")
        return self._process.pid

    def start(self) -> None:
        """Start the hub and return once its API answers through the proxy."""
        if self._process is not None:
            raise RuntimeError("the hub runs already")
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.rig.start_hub", "--config", str(self.config_path)],
                cwd=self.directory,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if self not in HubProcess.live:
            HubProcess.live.append(self)
        try:
            wait_for("the hub to answer", self._answers, timeout=_START_SECONDS)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.log_tail()}") from None

    def _environment(self) -> dict[str, str]:
        """Return this process's environment without what steers hubs, engines or tests."""
        ours = ("DOCKER_", "JUPYTERHUB_", "JPY_", "PYTEST_", "GPUSPAWNER_")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")]))
        return {**kept, **run_mark(), **self._env}

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            status = self._process.returncode
            raise RuntimeError(f"the hub ended with status {status}:\n{self.log_tail()}")
        try:
            # Directly first: the proxy writes six lines for each call that finds no hub.
            socket.create_connection((self.hub_ip, self.hub_port), timeout=5).close()
            return self.api("GET", "/info").status == 200
        except OSError:  # which requests' errors are as well
            return False

    def terminate(self, timeout: float = _STOP_SECONDS) -> None:
        """End the hub in order (SIGTERM): it does with its servers what its settings say."""
        if self._process is None:
            return
        self._remember()
        self._process.terminate()
        self._process.wait(timeout)
        self._process = None

    def kill(self) -> None:
        """End only the hub, as a crash does (SIGKILL); proxy and services are left behind."""
        if self._process is None:
            return
        self._remember()
        self._process.kill()
        self._process.wait()
        self._process = None

    def wait_killed(self, timeout: float = 60) -> None:
        """Wait until the hub, which kills itself (SIGKILL), is dead; as `kill` otherwise."""
        assert self._process is not None
        self._remember()
        status = self._process.wait(timeout)
        if status != -signal.SIGKILL:
            raise RuntimeError(f"the hub ended with status {status}:\n{self.log_tail()}")
        self._process = None

    def restart(self) -> None:
        """End in order if it runs, then start on the same folder and ports."""
        self.terminate()
        self.start()

    def _remember(self) -> None:
        """Note what runs below the hub, which loses its parent when the hub is killed."""
        self._seen |= set(descendants(self.pid))

    def close(self) -> None:
        """End everything this hub ever started: at once, for the test is over."""
        self.kill()
        kill_all(self._seen)
        self._seen.clear()
        if self in HubProcess.live:
            HubProcess.live.remove(self)

    # --- what it says ---------------------------------------------------------------------

    def log(self) -> str:
        """Return the whole log: the hub's, its proxy's and its services' lines."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self, lines: int = 60) -> str:
        """Return the end of the log."""
        return "\n".join(self.log().splitlines()[-lines:])
