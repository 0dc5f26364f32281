"""The units of the how-to: their files are read, and a service runs on what they say."""

import configparser
import json
import re
import secrets
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuspawner.agent.hub import HubServers
from gpuspawner.cli.main import make_parser
from tests.docs.pages import ROOT, Block, blocks
from tests.docs.sessions import fill
from tests.rig.hub import HubProcess
from tests.rig.processes import free_port, wait_for

PAGE = ROOT / "docs/how-to/run-service-and-agent-as-units.md"
UNITS = [block for block in blocks(PAGE, "ini") if "[Unit]" in block.text]
FILES = [block for block in blocks(PAGE, "ini") if "[Unit]" not in block.text]
_AGENT_FILE, _SERVICE_FILE = FILES


def unit(block: Block) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(block.text)
    return parser


def variables(block: Block) -> dict[str, str]:
    pairs = (line.split("=", 1) for line in block.text.splitlines())
    return dict(pairs)


def test_the_units_start_what_there_is() -> None:
    verbs = []
    for block in UNITS:
        program, *words = shlex.split(unit(block)["Service"]["ExecStart"])
        assert program == "/opt/jupyterhub/bin/gpuspawner"
        verbs.append(make_parser().parse_args(words).verb)
    assert verbs == ["agent", "service"]


def test_their_environment_is_in_the_reference() -> None:
    told = (ROOT / "docs/reference/environment.md").read_text(encoding="utf-8")
    for block in FILES:
        for name in variables(block):
            assert f"`{name}`" in told or name == "PGPASSFILE", name  # PostgreSQL's own


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Callable[[dict[str, str]], None]]:
    """Start a service as the unit does, with other ports and another ledger."""
    started = []

    def start(changes: dict[str, str]) -> None:
        program, _, *options = shlex.split(unit(UNITS[1])["Service"]["ExecStart"])
        assert program.endswith("/gpuspawner")
        with (tmp_path / "service.log").open("wb") as log:
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "gpuspawner", "service", *options],
                    cwd=tmp_path,
                    env={"PYTHONPATH": str(ROOT), **variables(_SERVICE_FILE), **changes},
                    stdout=log,
                    stderr=log,
                )
            )

    yield start
    for process in started:
        process.terminate()
        process.wait(20)


def test_a_hub_and_a_service_that_the_page_describes_find_each_other(
    make_hub: Callable[..., HubProcess], service: Callable[[dict[str, str]], None], tmp_path: Path
) -> None:
    first = next(blocks(PAGE, "python"))
    port, token = free_port(), secrets.token_hex(32)
    ledger = f"sqlite:///{tmp_path}/gpuspawner.sqlite"
    fill(tmp_path, [])  # what the agent does
    config = first.text.replace('"172.30.0.1"', "c.JupyterHub.hub_ip")
    config += f'\nc.JupyterHub.services[0]["url"] = "http://127.0.0.1:{port}"\n'
    agent_token = secrets.token_hex(32)
    hub = make_hub(
        config,
        env={
            "GPU_SERVICE_TOKEN": token,
            "GPU_AGENT_TOKEN": agent_token,
            "GPUSPAWNER_LEDGER_URL": ledger,
        },
    )
    service({
        "GPUSPAWNER_LEDGER_URL": ledger,
        "GPUSPAWNER_SERVICE_ADDRESSES": "",
        "JUPYTERHUB_API_URL": f"http://127.0.0.1:{hub.hub_port}/hub/api",
        "JUPYTERHUB_API_TOKEN": token,
        "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{port}",
    })  # fmt: skip

    def ask(path: str, **headers: str) -> dict[str, object] | None:
        request = urllib.request.Request(f"{hub.url}services/gpu/api/{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                body: dict[str, object] = json.load(answer)
        except OSError:
            return None
        return body

    def healthy() -> bool:
        health = ask("health")
        return health is not None and health["status"] == "ok"

    try:
        wait_for("the service to be well", healthy, timeout=30, every=0.5)
    except TimeoutError as error:
        log = (tmp_path / "service.log").read_text()
        raise TimeoutError(f"{error}; {ask('health')}\n{log}") from None
    # The agent's token may see which servers the hub knows: none yet.
    assert HubServers(f"http://127.0.0.1:{hub.hub_port}/hub/api", agent_token).servers() == set()
    me = ask("me", Authorization=f"token {hub.user_token('ada')}")
    assert me is not None
    assert me["user"] == "ada"
    assert re.fullmatch(r"[a-z0-9]{1,16}", variables(_SERVICE_FILE)["GPUSPAWNER_HUB_ID"])
    assert f'hub_id="{variables(_SERVICE_FILE)["GPUSPAWNER_HUB_ID"]}"' in first.text
