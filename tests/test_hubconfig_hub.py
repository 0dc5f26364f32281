"""What ``configure(c)`` comes to in a real hub: the notebook's token, and a hub that starts."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from gpuspawner.hubconfig import ACCESS
from tests.rig.hub import HubProcess
from tests.rig.processes import descendants

STUB = Path(__file__).parent / "rig" / "stub" / "stub_server.py"
SITE = f"""
c.JupyterHub.spawner_class = "gpu-local"
c.Spawner.cmd = [{sys.executable!r}, {str(STUB)!r}]
"""
OWN_ROLE = 'c.JupyterHub.load_roles = [{"name": "user", "scopes": ["self"]}]\n'
LAZY = 'c.Spawner.server_token_scopes.append("read:users!user")\n'
LAST = 'import gpuspawner\ngpuspawner.configure(c, service="external", agent="external")\n'


def environment_of_notebook(hub: HubProcess) -> dict[str, str]:
    """The environment that the server's process was started with."""
    for process in descendants(hub.pid):
        try:
            if str(STUB) in process.cmdline():
                return process.environ()
        except psutil.NoSuchProcess:
            continue
    raise AssertionError("no notebook runs")


@pytest.mark.parametrize("site", ["", OWN_ROLE, LAZY], ids=["plain", "own-user-role", "lazy"])
def test_a_notebooks_token_reaches_the_service(
    make_hub: Callable[..., HubProcess], site: str
) -> None:
    """The scope is dropped without a word where the user does not hold it (H2)."""
    hub = make_hub(SITE + site + LAST)
    hub.start_server("ada", options={})
    hub.wait_server("ada")
    token = environment_of_notebook(hub)["JUPYTERHUB_API_TOKEN"]

    me = hub.api("GET", "/user", token=token)

    assert (me.status, me.body["name"]) == (200, "ada")
    assert set(me.body["scopes"]) >= {
        ACCESS, "users:activity!user=ada", "access:servers!server=ada/",
    }  # fmt: skip
    # And no more than that: not her other servers, nor anybody else.
    assert not [scope for scope in me.body["scopes"] if scope.startswith(("admin", "servers"))]
    other = hub.api("GET", "/users/ben", token=token)
    assert other.status in (403, 404)
    assert hub.stop_server("ada").status in (202, 204)


@pytest.mark.proves("P7", "R14")
def test_a_unit_that_is_away_holds_no_hub_up(make_hub: Callable[..., HubProcess]) -> None:
    """JupyterHub waits 30 s for an external service before it serves anybody."""
    hub = make_hub(SITE, start=False)
    began = time.monotonic()
    hub.start()
    without = time.monotonic() - began
    hub.terminate()
    hub.write_config(SITE + LAST)
    began = time.monotonic()
    hub.start()
    assert time.monotonic() - began < without + 15
