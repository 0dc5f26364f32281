"""The set-up of the how-to: the hub in a container, the agent as a process of the host.

Image, configuration, commands and unit are the page's own. What differs is what belongs to a
machine: folder, socket, port and account, and a simulated lab in place of GPUs.
"""

import contextlib
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import requests

from tests.docs.pages import ROOT, blocks, commands
from tests.rig.engine import OwnedEngine
from tests.rig.hub_api import HubAPI
from tests.rig.hub_image import PAGE
from tests.rig.postgres import PostgresServer
from tests.rig.processes import free_port, kill_all, run_mark, wait_for

NAME, NETWORK, TAG = "jupyterhub", "notebooks", "lab/hub:1"
ACCOUNT = 64_321  # of nobody: hub and agent must get by with what the page gives them

_TAIL = """
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.admin_users = {{"admin"}}
c.DockerSpawner.image = {image!r}
c.JupyterHub.services.append({{"name": "rig", "api_token": {token!r}}})
c.JupyterHub.load_roles.append(
    {{"name": "rig", "services": ["rig"], "scopes": {scopes!r}}}
)
"""
_SCOPES = ["admin:users", "admin:servers", "tokens", "read:hub"]


def page_command(beginning: str) -> str:
    """Return the page's one command that begins like this."""
    found = {item.text for item in commands(PAGE) if item.text.startswith(beginning)}
    assert len(found) == 1, f"{beginning}: {found}"
    return found.pop()


class HubContainer(HubAPI):
    """A site's folder, its hub's container and its agent; `close` ends the agent.

    The container ends with the engine's other ones. With ``ledger_url`` the ledger is that
    database of this PostgreSQL server, which the container reaches by its socket.
    """

    def __init__(
        self,
        engine: OwnedEngine,
        folder: Path,
        image: str,
        *,
        server: PostgresServer | None = None,
        ledger_url: str = "",
    ) -> None:
        """Write the folder; nothing runs yet. ``image`` is that of notebooks."""
        self.port = free_port()
        super().__init__(f"http://127.0.0.1:{self.port}/", secrets.token_hex(16))
        self.folder = folder
        self._socket = Path(engine.url.removeprefix("unix://"))
        self._engine_url = engine.url
        self._server = server
        self.ledger_url = ledger_url or f"sqlite:///{folder}/gpuspawner.sqlite"
        self._agent: subprocess.Popen[bytes] | None = None
        self._package = Path()
        self.agent_log = folder.with_name(f"{folder.name}-agent.log")
        folder.mkdir(mode=0o700)
        (config,) = blocks(PAGE, "python")
        path = folder / "jupyterhub_config.py"
        path.write_text(config.text + _TAIL.format(image=image, token=self.token, scopes=_SCOPES))
        for each in (folder, path):
            os.chown(each, ACCOUNT, ACCOUNT)

    # --- the hub --------------------------------------------------------------------------

    def run(self, command: str) -> str:
        """Run one of the page's commands, with what is this machine's; return what it prints."""
        for theirs, ours in self._own().items():
            command = command.replace(theirs, ours)
        done = subprocess.run(
            ["bash", "-c", command], env={**os.environ, "DOCKER_HOST": self._engine_url},
            check=False, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _own(self) -> dict[str, str]:
        """Return what is this machine's, by what the page has in its place."""
        own = {
            "$(id -u jupyterhub)": str(ACCOUNT),
            "$(id -g jupyterhub)": str(ACCOUNT),
            "/srv/jupyterhub:": f"{self.folder}:",
            "/var/run/docker.sock:": f"{self._socket}:",
            "%g /var/run/docker.sock": f"%g {self._socket}",
            "127.0.0.1:8000:": f"127.0.0.1:{self.port}:",
        }
        if self._server is not None:
            socket = f".s.PGSQL.{self._server.port}"
            theirs = f"/run/postgresql/{socket}"
            own["/run/postgresql:/run/postgresql"] = f"{self._server.folder / socket}:{theirs}"
            database = self.ledger_url.rpartition("/")[2]
            own["jupyterhub@/gpuspawner?"] = f"postgres@/{database}?port={self._server.port}&"
        return own

    def start(self) -> None:
        """Start a hub's container by the page's command; return once the hub answers."""
        command = page_command("docker run ")
        if self._server is not None:
            options = re.findall(r"^\| `(--.+?)` \|", PAGE.read_text(), re.MULTILINE)[-2:]
            command = command.replace(f" {TAG}", f" {' '.join(options)} {TAG}")
        self.run(command)
        self.wait_up()

    def wait_up(self) -> None:
        """Wait until the hub answers through its proxy."""
        try:
            wait_for("the hub in its container", self._answers, timeout=60, every=0.2)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.log()}") from None

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):  # which requests' errors are as well
            return self.api("GET", "/info").status == 200
        return False

    def log(self, lines: int = 60) -> str:
        """Return the end of what the hub's container and the agent said."""
        hub = "no hub's container"
        with contextlib.suppress(AssertionError):
            hub = self.run(f"docker logs --tail {lines} {NAME} 2>&1")
        agent = self.agent_log.read_text().splitlines() if self.agent_log.exists() else []
        return "\n".join([hub, *agent[-lines:]])

    def service(self, path: str, token: str = "") -> dict[str, object]:
        """Ask the service through the proxy; empty unless it answers with 200."""
        headers = {"Authorization": f"token {token}"} if token else {}
        with contextlib.suppress(requests.RequestException), requests.Session() as session:
            session.trust_env = False
            url = f"{self.url}services/gpu/api/{path}"
            answer = session.get(url, headers=headers, timeout=10)
            if answer.status_code == 200:
                body: dict[str, object] = answer.json()
                return body
        return {}

    # --- the agent ------------------------------------------------------------------------

    def start_agent(self) -> None:
        """Start the agent as the page's unit does, on a simulated lab."""
        (unit,) = blocks(PAGE, "ini")
        lines = dict(re.findall(r"^(\w+)=(.*)$", unit.text, re.MULTILINE))
        assert (lines["User"], lines["SupplementaryGroups"]) == ("jupyterhub", "docker")
        assert lines["WorkingDirectory"] == "/srv/jupyterhub"
        program, *words = shlex.split(lines["ExecStart"])
        assert program == "/opt/gpuspawner/bin/gpuspawner"
        command = [sys.executable, "-m", "gpuspawner", *words, "--simulate", "mixed-lab"]
        # Alembic asks whether its folder is there by access(2), which knows no capability.
        self._package = Path(tempfile.mkdtemp(prefix="gpuspawner-package-", dir="/var/tmp"))
        self._package.chmod(0o755)
        shutil.copytree(
            ROOT / "gpuspawner", self._package / "gpuspawner",
            ignore=shutil.ignore_patterns("__pycache__"),
        )  # fmt: skip
        with self.agent_log.open("ab") as log:
            self._agent = subprocess.Popen(
                [*self._as_account(), *command],
                cwd=self.folder,
                env={
                    "PATH": os.environ["PATH"],
                    "PYTHONPATH": str(self._package),
                    "DOCKER_HOST": self._engine_url,
                    **({"GPUSPAWNER_LEDGER_URL": self.ledger_url} if self._server else {}),
                    **run_mark(),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _as_account(self) -> list[str]:
        """Return how a program runs as the site's account.

        It may *read* everything (not write): this checkout and its Python may lie in a folder of
        root's.
        """
        capability = "+dac_read_search"
        return [
            "setpriv", f"--reuid={ACCOUNT}", f"--regid={ACCOUNT}",
            f"--groups={self._socket.stat().st_gid}",
            f"--inh-caps={capability}", f"--ambient-caps={capability}", "--",
        ]  # fmt: skip

    def stop_agent(self) -> int:
        """End the agent in order; return its exit status."""
        assert self._agent is not None
        self._agent.terminate()
        status = self._agent.wait(20)
        self._agent = None
        shutil.rmtree(self._package, ignore_errors=True)
        return status

    def close(self) -> None:
        """End the agent, whatever it does."""
        if self._agent is not None:
            kill_all([psutil.Process(self._agent.pid)])
            self._agent.wait()
            self._agent = None
            shutil.rmtree(self._package, ignore_errors=True)
