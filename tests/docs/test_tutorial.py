"""The tutorial, step by step, on the demo's own configuration."""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuspawner.catalogue import Catalogue
from gpuspawner.domain.leases import Lease
from gpuspawner.domain.uses import uses_of
from gpuspawner.ledger.store import Ledger
from tests.docs.pages import ROOT, blocks, commands, says
from tests.docs.sessions import NOT_HERE, Session
from tests.rig.hub import HubProcess
from tests.rig.processes import free_port, wait_for
from tools import demo

PAGE = ROOT / "docs/tutorial/first-hub.md"
# The demo's file with the ports of this test: the demo's own may be in use on this machine.
CONFIG = """
kept = c.JupyterHub.bind_url
load_subconfig({file!r})
c.JupyterHub.bind_url = kept
c.JupyterHub.services[0]["url"] = "http://127.0.0.1:{port}"
"""


def test_the_demo_says_what_the_page_shows() -> None:
    (shown,) = (command for command in commands(PAGE) if command.text == "make demo")
    source = Path(demo.__file__).read_text(encoding="utf-8")
    for line in shown.output.splitlines():
        assert line.strip() in source, line


def test_the_tutorial(make_hub: Callable[..., HubProcess], tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    status, leases = (item for item in commands(PAGE) if item.text not in NOT_HERE)
    steps, refusal = blocks(PAGE, "text")
    config = CONFIG.format(file=str(ROOT / "jupyterhub_config.py"), port=free_port())
    hub = make_hub(config)
    session = Session(tmp_path)
    (tmp_path / ".demo").symlink_to(hub.directory)
    ledger = Ledger(f"sqlite:///{hub.directory}/gpuspawner.sqlite")
    try:
        wait_for("the agent to report", lambda: reports(ledger))
        answer = hub.start_server("ada", options={"profile": "whole"})
        assert answer.status in (201, 202), answer.body
        hub.wait_server("ada")
        lease = newest(ledger)
        check_steps(steps.text, lease)
        check_notebook(lease)
        wait_for("the agent to say what it uses", lambda: is_used(ledger, lease))
        session.run(status)

        answer = hub.start_server("ben", options={"profile": "whole"})
        assert answer.status == 429
        assert answer.body["message"] == refusal.text

        hub.stop_server("ada")
        hub.wait_server("ada", ready=False)
        ended = newest(ledger, "ada")
        assert ended.reason is not None
        assert f"“{Catalogue('en').reason(ended.reason)}”" in text
        session.run(leases)
    finally:
        ledger.close()


def reports(ledger: Ledger) -> bool:
    with ledger.read() as books:
        return bool(books.hosts())


def is_used(ledger: Ledger, lease: Lease) -> bool:
    with ledger.read() as books:
        return lease.lease_id in uses_of([lease], books.attributions(), datetime.now(UTC))


def newest(ledger: Ledger, user: str = "ada") -> Lease:
    with ledger.read() as books:
        return next(lease for lease in books.recent() if lease.key.user == user)


def check_steps(text: str, lease: Lease) -> None:
    source = "".join(
        file.read_text(encoding="utf-8") for file in (ROOT / "gpuspawner/spawners").glob("*.py")
    )
    for line in text.splitlines():
        if line.startswith("You have: "):
            assert line == f"You have: {Catalogue('en').slice(lease.slices[0])}"
        else:
            assert f'"{line}"' in source


def check_notebook(lease: Lease) -> None:
    """Evaluate the page's notebook cell in the environment that the server really has."""
    (cell,) = blocks(PAGE, "pycon")
    assert lease.run_id is not None
    raw = Path(f"/proc/{lease.run_id.split(':')[1]}/environ").read_bytes()
    inside = dict(os.fsdecode(pair).split("=", 1) for pair in raw.split(b"\0") if b"=" in pair)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("GPU_MODE", "GPU_UUIDS", "GPU_MEM_LIMIT"):
            patch.setenv(name, inside[name])
        lines = cell.text.splitlines()
        assert lines[0] == ">>> import os"
        for source, shown in zip(lines[1::2], lines[2::2], strict=True):
            assert says(shown, repr(eval(source.removeprefix(">>> "), {"os": os}))), source
