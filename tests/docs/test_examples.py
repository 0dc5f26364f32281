"""Every configuration in README and docs is one that a hub takes."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jupyterhub.app import JupyterHub
from jupyterhub.auth import Authenticator
from traitlets.config import Config

from gpuspawner.domain.policy import Policy
from gpuspawner.spawners.base import GPUSpawner
from gpuspawner.spawners.docker import GPUDockerSpawner
from gpuspawner.spawners.local import GPULocalSpawner
from tests.docs.pages import Block, all_pages, blocks

EXAMPLES = [
    pytest.param(block, id=str(block)) for page in all_pages() for block in blocks(page, "python")
]
SECTIONS: dict[str, Any] = {
    "JupyterHub": JupyterHub,
    "Authenticator": Authenticator,
    "Spawner": GPUDockerSpawner,
    "DockerSpawner": GPUDockerSpawner,
    "GPUSpawner": GPUSpawner,
    "GPUDockerSpawner": GPUDockerSpawner,
    "GPULocalSpawner": GPULocalSpawner,
}


def run(block: Block) -> Config:
    """Read a block as JupyterHub reads its file."""
    c = Config()
    exec(compile(block.text, str(block), "exec"), {"get_config": lambda: c})
    return c


@pytest.mark.parametrize("block", EXAMPLES)
def test_a_hub_takes_it(block: Block, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPU_SERVICE_TOKEN", "a-token-of-the-test")
    monkeypatch.setenv("GPU_AGENT_TOKEN", "another-token-of-the-test")
    monkeypatch.chdir(tmp_path)
    c = run(block)
    for section, settings in ((name, found) for name, found in c.items() if found):
        known = set(SECTIONS[section].class_trait_names(config=True))
        assert set(settings) <= known, f"{block}: {section}"
    assert c.JupyterHub.spawner_class == "gpu-docker"
    assert "gpu" in [service["name"] for service in JupyterHub(config=c).services]
    ada = SimpleNamespace(name="ada", settings={}, url="/user/ada/", escaped_name="ada")
    policy = GPUDockerSpawner(config=c, user=ada).policy()
    assert isinstance(policy, Policy)
    assert policy.profiles


@pytest.mark.parametrize("block", EXAMPLES)
def test_configure_is_its_last_call(block: Block) -> None:
    assert block.text.splitlines()[0] in ("c = get_config()", "import os")
    last = block.text.rindex("\ngpuspawner.configure(")
    assert "\nc." not in block.text[last:]
