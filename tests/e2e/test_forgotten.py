"""The agent's question to a real hub, through a proxy that spoils the answer in every way."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuspawner.agent.hub import HubAwayError, HubServers
from tests.doubles.fault_proxy import FaultProxy
from tests.doubles.hub_faults import USERS
from tests.rig.hub import HubProcess

STUB = Path(__file__).parents[1] / "rig" / "stub" / "stub_server.py"
CONFIG = """
c.JupyterHub.spawner_class = "simple"
c.JupyterHub.allow_named_servers = True
c.Spawner.cmd = [{python!r}, {stub!r}]
c.SimpleLocalProcessSpawner.home_dir_template = {homes!r}
c.JupyterHub.api_page_default_limit = 2
c.JupyterHub.api_page_max_limit = 2
c.JupyterHub.services = [
    {{"name": "gpu-agent", "api_token": "agents-token-of-the-test"}},
    {{"name": "blind", "api_token": "blind-token-of-the-test"}},
]
c.JupyterHub.load_roles = [
    {{"name": "gpu-agent", "services": ["gpu-agent"], "scopes": ["list:users", "read:servers"]}},
    {{"name": "blind", "services": ["blind"], "scopes": ["list:users"]}},
]
"""
BROKEN = [
    {"status": 500},
    {"status": 429, "body": {"message": "later"}},
    {"status": 302, "headers": {"Location": "/hub/login"}},
    {"status": 200, "body": "<html>log in</html>"},
    {"status": 200, "body": []},
    {"status": 200, "body": {"items": [], "_pagination": None}},
    {"status": 200, "body": {"items": [{"name": "ada"}], "_pagination": {"next": None}}},
    {"status": 200, "body": {"items": [], "_pagination": {"next": {"offset": 0}}}},
    {"cut": 20},
    {"lose": True},
    {"close": True},
]


@pytest.fixture
def hub(make_hub: Callable[..., HubProcess], tmp_path: Path) -> HubProcess:
    homes = str(tmp_path / "{username}")
    return make_hub(CONFIG.format(python=sys.executable, stub=str(STUB), homes=homes))


@pytest.fixture
def proxy(hub: HubProcess) -> Iterator[FaultProxy]:
    with FaultProxy(f"http://127.0.0.1:{hub.hub_port}/hub/api") as proxy:
        yield proxy


def test_servers_of_all_pages_are_told_and_a_spoilt_answer_tells_nothing(
    hub: HubProcess, proxy: FaultProxy
) -> None:
    for user, server in (("ada", ""), ("ada", "two"), ("ben", ""), ("cho", "")):
        assert hub.start_server(user, server).status in (201, 202)
    ask = HubServers(proxy.url, "agents-token-of-the-test")

    # Ready or still starting: whatever the hub knows of is not forgotten.
    expected = {("ada", ""), ("ada", "two"), ("ben", ""), ("cho", "")}
    assert ask.servers() == expected
    assert len(proxy.requests) == 2  # two on a page

    for what in BROKEN:
        with proxy.during("GET", USERS, **what), pytest.raises(HubAwayError):
            ask.servers()
        # The second page only: half an answer is none.
        with proxy.during("GET", USERS + r".*|offset=2", **what), pytest.raises(HubAwayError):
            ask.servers()
        assert ask.servers() == expected

    with pytest.raises(HubAwayError, match="tells of no servers"):
        HubServers(proxy.url, "blind-token-of-the-test").servers()
    with pytest.raises(HubAwayError, match="403"):
        HubServers(proxy.url, "nobodys").servers()
    with proxy.refusing(), pytest.raises(HubAwayError):
        ask.servers()
    assert ask.servers() == expected
