"""What the documentation's commands run on, and which of them cannot run in a test."""

import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from gpuspawner.broker.broker import Broker
from gpuspawner.domain.devices import HostId
from gpuspawner.domain.leases import Claim, ServerKey
from gpuspawner.domain.policy import parse_policy
from gpuspawner.domain.reconciliation import EngineState, Stray
from gpuspawner.gpus.simulated import SimulatedInventory
from gpuspawner.ledger.store import Ledger
from tests.docs.pages import ROOT, Command, says

_INSTALLS = "installs from a package index into a site's environment"
_HOST = "changes a site's host, as its root"
_POSTGRESQL = "changes a site's PostgreSQL"
_POSTGRES = "needs the books in PostgreSQL; test_books runs the page's commands there"
_NO_TOOLKIT = "needs NVIDIA's driver and container toolkit"

# Every command of README and docs that no test runs, and why.
NOT_HERE = {
    "make demo": "runs until Ctrl+C; test_demo runs it, and test_tutorial its configuration",
    "make test": "is what runs this test",
    "apt-get install --no-install-recommends make python3-venv": _HOST,
    'pip install "gpuspawner[hub]"': _INSTALLS,
    '/opt/jupyterhub/bin/pip install "gpuspawner[hub]"': _INSTALLS,
    '/opt/jupyterhub/bin/pip install "gpuspawner[hub,postgresql]"': _INSTALLS,
    "createuser --pwprompt gpuspawner": "asks for a password, at a site's PostgreSQL",
    "createdb --owner gpuspawner gpuspawner": _POSTGRESQL,
    "useradd --system --user-group --groups docker --home-dir /srv/jupyterhub "
    "--shell /usr/sbin/nologin jupyterhub": _HOST,
    "install --directory --owner jupyterhub --group jupyterhub --mode 0700 /srv/jupyterhub": _HOST,
    "docker build --tag lab/hub:1 .": "hub_image builds the page's Dockerfile with this checkout",
    "python3 -m venv /opt/gpuspawner": _HOST,
    '/opt/gpuspawner/bin/pip install "gpuspawner[hub]"': _INSTALLS,
    '/opt/gpuspawner/bin/pip install --upgrade "gpuspawner[hub]"': _INSTALLS,
    "createuser jupyterhub": _POSTGRESQL,
    "createdb --owner jupyterhub gpuspawner": _POSTGRESQL,
    "systemctl enable --now gpuspawner-agent": _HOST,
    "systemctl stop gpuspawner-agent": _HOST,
    "systemctl start gpuspawner-agent": _HOST,
    "systemctl daemon-reload": _HOST,
    "systemctl enable --now gpuspawner-agent gpuspawner-service": _HOST,
    "systemctl restart jupyterhub": _HOST,
    "systemctl stop jupyterhub gpuspawner-service gpuspawner-agent": _HOST,
    "systemctl start gpuspawner-service jupyterhub": _HOST,
    "pg_dump --format=custom --exclude-table-data=hosts --file=gpuspawner.dump "
    '"$GPUSPAWNER_LEDGER_URL"': _POSTGRES,
    "pg_restore --clean --if-exists --no-owner "
    '--dbname="$GPUSPAWNER_LEDGER_URL" gpuspawner.dump': _POSTGRES,
    "gpuspawner restore": _POSTGRES,
    "curl --silent http://127.0.0.1:8095/services/gpu/api/health": "asks a site's own unit; "
    "test_units asks a service that was started from the page's files",
    'curl -H "Authorization: token $TOKEN" https://hub.example.org/services/gpu/api/me': "asks a "
    "site's hub; test_service_hub asks the same route with a token",
    "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml": _NO_TOOLKIT,
    "nvidia-ctk cdi list": _NO_TOOLKIT,
    "nvidia-smi -L": _NO_TOOLKIT,
}

PROFILES = [
    {"name": "cpu", "title": "CPU only", "default": True},
    {"name": "whole", "title": "Whole H100", "mode": "whole", "models": ["H100"],
     "images": ["lab/pytorch:2026.2", "lab/jax:2026.2"]},
]  # fmt: skip


@dataclass(frozen=True)
class Scene:
    """What a page's commands find: leases of these people, perhaps an engine, or trouble."""

    holders: tuple[str, ...] = ()
    engine: bool = False
    trouble: bool = False


# By the page's name; a page whose commands run has a scene.
SCENES = {
    "docs/how-to/adopt-on-an-existing-hub.md": Scene(engine=True),
    "docs/how-to/back-up-and-restore.md": Scene(holders=("ben",)),
    "docs/how-to/pull-images-before-class.md": Scene(engine=True),
    "docs/how-to/take-a-gpu-out-of-service.md": Scene(holders=("ben",)),
    "docs/how-to/when-something-is-unknown.md": Scene(holders=("ben",), trouble=True),
    "docs/reference/labels.md": Scene(engine=True),
}
# Pages whose commands a test of their own runs.
ELSEWHERE = {
    "docs/how-to/run-the-hub-in-a-container.md": "test_hub_in_container",
    "docs/tutorial/first-hub.md": "test_tutorial",
}


@dataclass
class Session:
    """A working directory with a ledger, in which commands run one after the other."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, command: Command) -> None:
        """Run a command; it must succeed and print what the page shows."""
        done = subprocess.run(
            ["bash", "-c", command.text], cwd=self.folder, env=self._variables(), check=False,
            capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        told = f"{command.where}: {command.text}\n{done.stdout}{done.stderr}"
        assert done.returncode == 0, told
        if command.output:
            assert says(command.output, done.stdout), told

    def _variables(self) -> dict[str, str]:
        ours = ("DOCKER_", "JUPYTERHUB_", "GPUSPAWNER_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return {
            **kept,
            "PATH": f"{self._programs()}:{kept.get('PATH', '')}",
            "PYTHONPATH": str(ROOT),
            **self.environment,
        }

    def _programs(self) -> Path:
        """Make the command as an installation would have it, here and in ``.venv``."""
        folder = self.folder / ".venv" / "bin"
        program = folder / "gpuspawner"
        if not program.exists():
            folder.mkdir(parents=True)
            program.write_text(f'#!/bin/sh\nexec {sys.executable} -m gpuspawner "$@"\n')
            program.chmod(0o755)
        return folder


def fill(folder: Path, holders: Iterable[str], *, trouble: bool = False) -> None:
    """Do what agent and hub do: report a lab, publish the profiles, grant what is asked for.

    In ``trouble`` something runs on the first device without a lease, and the engine is silent.
    """
    ledger = Ledger(f"sqlite:///{folder}/gpuspawner.sqlite")
    inventory = SimulatedInventory(HostId("gpu1"), "mixed-lab")
    try:
        now = datetime.now(UTC)
        broker = Broker(ledger, actor="hub")
        policy = parse_policy(PROFILES, [])
        broker.observe(inventory.look(now), now)
        broker.publish(policy, "lab", now)
        broker.note_engine(EngineState(host_id="gpu1", engine="docker", answered_at=now))
        for user in holders:
            key = ServerKey(hub_id="lab", user=user)
            lease = broker.request(Claim(key=key, profile=policy.profiles[1]), now)
            broker.bind(lease, f"run-{lease.lease_id}", now)
            broker.run(lease, now, now)
        if trouble:
            first = inventory.look(now).devices[0].uuid
            stray = Stray(run_id="9f2c41d07be3aa16", name="old-training", devices=(first,))
            broker.report_strays("gpu1", "docker", [stray], now)
            broker.note_engine(
                EngineState(
                    host_id="gpu1",
                    engine="docker",
                    silent_since=now,
                    detail="the engine does not answer: connection refused",
                )
            )
    finally:
        inventory.close()
        ledger.close()
