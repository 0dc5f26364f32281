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
from gpuspawner.gpus.simulated import SimulatedInventory
from gpuspawner.ledger.store import Ledger
from tests.docs.pages import ROOT, Command, says

_INSTALLS = "installs from a package index into a site's environment"
_HOST = "changes a site's host, as its root"
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
    "createdb --owner gpuspawner gpuspawner": "changes a site's PostgreSQL",
    "systemctl daemon-reload": _HOST,
    "systemctl enable --now gpuspawner-agent gpuspawner-service": _HOST,
    "systemctl restart jupyterhub": _HOST,
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
    """What a page's commands find: leases of these people, perhaps an engine."""

    holders: tuple[str, ...] = ()
    engine: bool = False


# By the page's name; a page whose commands run has a scene.
SCENES = {
    "docs/how-to/adopt-on-an-existing-hub.md": Scene(engine=True),
    "docs/how-to/pull-images-before-class.md": Scene(engine=True),
    "docs/how-to/take-a-gpu-out-of-service.md": Scene(holders=("ben",)),
    "docs/reference/labels.md": Scene(engine=True),
}
# Pages whose commands a test of their own runs.
ELSEWHERE = {"docs/tutorial/first-hub.md": "test_tutorial"}


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


def fill(folder: Path, holders: Iterable[str]) -> None:
    """Do what agent and hub do: report a lab, publish the profiles, grant what is asked for."""
    ledger = Ledger(f"sqlite:///{folder}/gpuspawner.sqlite")
    inventory = SimulatedInventory(HostId("gpu1"), "mixed-lab")
    try:
        now = datetime.now(UTC)
        broker = Broker(ledger, actor="hub")
        policy = parse_policy(PROFILES, [])
        broker.observe(inventory.look(now), now)
        broker.publish(policy, "lab", now)
        for user in holders:
            key = ServerKey(hub_id="lab", user=user)
            lease = broker.request(Claim(key=key, profile=policy.profiles[1]), now)
            broker.bind(lease, f"run-{lease.lease_id}", now)
            broker.run(lease, now, now)
    finally:
        inventory.close()
        ledger.close()
