"""``configure(c)``: what it writes, what it keeps of the site's own, and that it does no more."""

import copy
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from traitlets.config import Config
from traitlets.config.loader import LazyConfigValue

from gpuspawner import configure
from gpuspawner.hubconfig import ACCESS, SERVER_TOKEN_SCOPES
from gpuspawner.lifetime import HUB_PID_VARIABLE

LEDGER = "GPUSPAWNER_LEDGER_URL"
SCOPES = list(SERVER_TOKEN_SCOPES)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, and an environment that says nothing."""
    monkeypatch.chdir(tmp_path)
    for name in (LEDGER, "DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


AGENT_ROLE = {
    "name": "gpu-agent", "services": ["gpu-agent"], "scopes": ["list:users", "read:servers"],
}  # fmt: skip


def configured(site: Callable[[Any], None] = lambda _c: None, **settings: Any) -> Any:
    c = Config()
    site(c)
    configure(c, **settings)
    return c


def plain(value: Any) -> Any:
    """A configuration without what only reading it leaves behind: empty sections."""
    if isinstance(value, LazyConfigValue):
        return value.to_dict()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items() if plain(each) != {}}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value


def service(c: Any, name: str = "gpu") -> dict[str, Any]:
    (found,) = [each for each in c.JupyterHub.services if each["name"] == name]
    return dict(found)


def test_the_whole_of_it() -> None:
    environment = {
        LEDGER: "sqlite:///gpuspawner.sqlite", "GPUSPAWNER_HUB_ID_FILE": "gpuspawner_hub_id",
        HUB_PID_VARIABLE: str(os.getpid()),
    }  # fmt: skip
    assert plain(configured()) == {
        "JupyterHub": {
            "spawner_class": "gpu-docker",
            "concurrent_spawn_limit": 0,
            "cleanup_servers": False,
            "extra_user_scopes": [ACCESS],
            "load_roles": [AGENT_ROLE],
            "services": [
                {
                    "name": "gpu", "url": "http://127.0.0.1:8095", "display": True,
                    "oauth_no_confirm": True, "oauth_client_allowed_scopes": [ACCESS],
                    "command": [sys.executable, "-m", "gpuspawner", "service"],
                    "environment": {**environment, "GPUSPAWNER_SERVICE_ADDRESSES": ""},
                },
                {
                    "name": "gpu-agent", "environment": environment,
                    "command": [sys.executable, "-m", "gpuspawner", "agent"],
                },
            ],
        },
        "Spawner": {"server_token_scopes": SCOPES},
    }  # fmt: skip


def everything(c: Any) -> None:
    """A site that has set what it could."""
    c.JupyterHub.spawner_class = "gpu-local"
    c.JupyterHub.concurrent_spawn_limit = 7
    c.JupyterHub.cleanup_servers = True
    c.JupyterHub.hub_connect_ip = "172.30.0.1"
    c.JupyterHub.base_url = "/lab/"
    c.JupyterHub.extra_user_scopes = {"access:services!service=grades"}
    c.JupyterHub.services = [
        {"name": "grades", "api_token": "x"}, {"name": "gpu", "api_token": "secret"},
    ]  # fmt: skip
    c.JupyterHub.load_roles = [
        {"name": "grader", "services": ["grades"], "scopes": ["list:users"]},
        {"name": "user", "scopes": ["self", "shares!user"]},
    ]
    c.Spawner.server_token_scopes = ("users:activity!user", "access:servers!server", "read:users")
    c.Spawner.environment = {"COURSE": "ml101"}
    c.Spawner.pre_spawn_hook = print
    c.DockerSpawner.environment = {"COURSE": "vis202"}
    c.DockerSpawner.client_kwargs = {"base_url": "tcp://engine:2376"}
    c.GPUSpawner.hub_id = "lab1"


def test_what_the_site_has_set_stays() -> None:
    c = configured(everything)
    assert c.JupyterHub.spawner_class == "gpu-local"
    assert c.JupyterHub.concurrent_spawn_limit == 7
    assert c.JupyterHub.cleanup_servers is True
    assert c.JupyterHub.extra_user_scopes == ["access:services!service=grades", ACCESS]
    assert c.JupyterHub.services[0] == {"name": "grades", "api_token": "x"}
    assert service(c)["api_token"] == "secret"
    assert service(c)["command"][-1] == "service"
    assert len(c.JupyterHub.services) == 3
    assert c.Spawner.pre_spawn_hook is print
    assert c.Spawner.server_token_scopes == [
        "users:activity!user", "access:servers!server", "read:users", ACCESS,
    ]  # fmt: skip
    # A `user` role of the site's own takes the place of the hub's, and of extra_user_scopes (H2).
    assert c.JupyterHub.load_roles == [
        {"name": "grader", "services": ["grades"], "scopes": ["list:users"]},
        {"name": "user", "scopes": ["self", "shares!user", ACCESS]},
        AGENT_ROLE,
    ]


def test_a_second_call_changes_nothing() -> None:
    c = configured(everything, profiles=[{"name": "cpu", "title": "CPU only"}])
    once = copy.deepcopy(plain(c))
    configure(c, profiles=[{"name": "cpu", "title": "CPU only"}])
    assert plain(c) == once


def test_the_sites_own_objects_are_not_changed() -> None:
    scopes, services, roles = ["self"], [{"name": "grades"}], [{"name": "user", "scopes": ["self"]}]

    def site(c: Any) -> None:
        c.JupyterHub.extra_user_scopes = scopes
        c.JupyterHub.services = services
        c.JupyterHub.load_roles = roles

    configured(site)
    assert scopes == ["self"]
    assert services == [{"name": "grades"}]
    assert roles == [{"name": "user", "scopes": ["self"]}]


@pytest.mark.parametrize("kind", [list, tuple, set])
def test_scopes_of_any_kind_are_kept(kind: type) -> None:
    def site(c: Any) -> None:
        c.JupyterHub.extra_user_scopes = kind(["shares!user"])
        c.Spawner.server_token_scopes = kind(["read:users"])

    c = configured(site)
    assert c.JupyterHub.extra_user_scopes == ["shares!user", ACCESS]
    assert c.Spawner.server_token_scopes == ["read:users", *SCOPES]


def lazily(c: Any) -> None:
    """What a site's file says when it only adds to a default that it has not set."""
    c.JupyterHub.extra_user_scopes.add("shares!user")
    c.JupyterHub.services.append({"name": "grades", "api_token": "x"})
    c.JupyterHub.load_roles.append({"name": "user", "scopes": ["self"]})
    c.Spawner.server_token_scopes.append("read:users")
    c.Spawner.server_token_scopes.extend(["shares!user"])
    c.Spawner.server_token_scopes.insert(0, "list:users")
    c.Spawner.environment.update({"COURSE": "ml101"})
    c.JupyterHub.hub_ip = "172.30.0.1"


def test_what_was_only_added_to_is_kept_too() -> None:
    c = configured(lazily)
    assert c.JupyterHub.extra_user_scopes == ["shares!user", ACCESS]
    assert [each["name"] for each in c.JupyterHub.services] == ["grades", "gpu", "gpu-agent"]
    assert c.JupyterHub.load_roles == [{"name": "user", "scopes": ["self", ACCESS]}, AGENT_ROLE]
    assert c.Spawner.server_token_scopes == ["list:users", "read:users", "shares!user", *SCOPES]
    assert c.Spawner.environment["COURSE"] == "ml101"
    configure(c)
    assert len(c.JupyterHub.services) == 3


@pytest.mark.parametrize("section", ["Spawner", "DockerSpawner", "GPUDockerSpawner"])
def test_a_callable_cannot_be_added_to_and_is_named(section: str) -> None:
    with pytest.raises(ValueError, match=rf"c\.{section}\.server_token_scopes is a callable"):
        configured(lambda c: c[section].update(server_token_scopes=lambda _spawner: []))


@pytest.mark.parametrize("section", ["DockerSpawner", "GPUDockerSpawner", "GPUSpawner"])
def test_what_is_set_for_one_class_gets_ours_too(section: str) -> None:
    """It hides what stands on c.Spawner."""

    def site(c: Any) -> None:
        c.JupyterHub.hub_ip = "172.30.0.1"
        c[section].server_token_scopes = ["read:users"]
        c[section].environment = {"TZ": "Asia/Shanghai"}

    c = configured(site)
    assert c[section].server_token_scopes == ["read:users", *SCOPES]
    assert set(c[section].environment) == {"TZ", "GPUSPAWNER_API_URL"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, None),
        ({"hub_ip": "127.0.0.1"}, None),
        ({"hub_ip": "0.0.0.0"}, None),
        ({"hub_ip": ""}, None),
        ({"hub_ip": "172.30.0.1"}, "http://172.30.0.1:8095/services/gpu/api/"),
        ({"hub_ip": "0.0.0.0", "hub_connect_ip": "hub"}, "http://hub:8095/services/gpu/api/"),
        ({"hub_ip": "jupyterhub"}, "http://jupyterhub:8095/services/gpu/api/"),
        ({"hub_ip": "::1"}, None),
        ({"hub_ip": "fd00::1"}, "http://[fd00::1]:8095/services/gpu/api/"),
        ({"hub_bind_url": "http://*:8081"}, None),
        ({"hub_bind_url": "http+unix://%2Frun%2Fhub.sock"}, None),
        ({"hub_bind_url": "http://172.30.0.1:8081", "hub_ip": "172.31.0.1"},
         "http://172.30.0.1:8095/services/gpu/api/"),
        ({"hub_bind_url": "http://:8081", "hub_connect_url": "http://hub:8081"},
         "http://hub:8095/services/gpu/api/"),
        ({"hub_connect_ip": "old", "hub_connect_url": "http://hub:8081"},
         "http://hub:8095/services/gpu/api/"),
        ({"hub_ip": "172.30.0.1", "base_url": "/"}, "http://172.30.0.1:8095/services/gpu/api/"),
        ({"hub_ip": "172.30.0.1", "base_url": "lab"},
         "http://172.30.0.1:8095/lab/services/gpu/api/"),
        ({"hub_ip": "172.30.0.1", "base_url": "/a/b/"},
         "http://172.30.0.1:8095/a/b/services/gpu/api/"),
        ({"hub_ip": "172.30.0.1", "bind_url": "https://:443/lab/"},
         "http://172.30.0.1:8095/lab/services/gpu/api/"),
        ({"hub_ip": "172.30.0.1", "bind_url": "http://:8000"},
         "http://172.30.0.1:8095/services/gpu/api/"),
    ],
)  # fmt: skip
def test_where_notebooks_find_the_service(settings: dict[str, str], expected: str | None) -> None:
    c = configured(lambda c: c.JupyterHub.update(settings))
    assert c.Spawner.get("environment", {}).get("GPUSPAWNER_API_URL") == expected
    address = urlsplit(expected or "").hostname or ""
    assert service(c)["environment"]["GPUSPAWNER_SERVICE_ADDRESSES"] == address


def test_a_port_and_an_address_of_the_sites_own() -> None:
    def site(c: Any) -> None:
        c.JupyterHub.hub_ip = "172.30.0.1"
        c.Spawner.environment = {"GPUSPAWNER_API_URL": "https://gpus/api/"}

    c = configured(site, service_port=9000)
    assert service(c)["url"] == "http://127.0.0.1:9000"
    assert c.Spawner.environment == {"GPUSPAWNER_API_URL": "https://gpus/api/"}


def test_units_of_the_sites_own_are_not_started_by_the_hub() -> None:
    c = configured(service="external", agent="external")
    assert service(c) == {
        "name": "gpu", "url": "http://127.0.0.1:8095", "display": True, "oauth_no_confirm": True,
        "oauth_client_allowed_scopes": [ACCESS], "timeout": 1,
    }  # fmt: skip
    assert [each["name"] for each in c.JupyterHub.services] == ["gpu"]


def test_service_and_agent_find_the_hubs_books_engine_and_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Managed services inherit no variables."""
    monkeypatch.setenv("DOCKER_HOST", "tcp://from-the-environment:2375")
    monkeypatch.setenv("DOCKER_CERT_PATH", "/certs")
    monkeypatch.setenv(LEDGER, "postgresql://db/gpus")

    def site(c: Any) -> None:
        c.GPUSpawner.hub_id = "lab1"
        c.GPUSpawner.hub_id_file = "/srv/id"

    expected = {
        LEDGER: "postgresql://db/gpus", "GPUSPAWNER_HUB_ID": "lab1",
        "GPUSPAWNER_HUB_ID_FILE": "/srv/id", "GPUSPAWNER_SIMULATE": "mixed-lab",
        "DOCKER_HOST": "tcp://from-the-environment:2375", "DOCKER_CERT_PATH": "/certs",
        HUB_PID_VARIABLE: str(os.getpid()),
    }  # fmt: skip
    c = configured(site, simulate="mixed-lab")
    assert service(c, "gpu-agent")["environment"] == expected
    assert service(c)["environment"] == {**expected, "GPUSPAWNER_SERVICE_ADDRESSES": ""}
    own = configured(everything, ledger_url="sqlite:////srv/books.sqlite")
    assert service(own, "gpu-agent")["environment"]["DOCKER_HOST"] == "tcp://engine:2376"
    assert service(own, "gpu-agent")["environment"][LEDGER] == "sqlite:////srv/books.sqlite"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"profile": []}, "unknown setting 'profile'; known are .*profiles"),
        ({"service": "systemd"}, "service must be one of .*got 'systemd'"),
        ({"agent": None}, "agent must be one of"),
        (
            {"profiles": [{"name": "cpu"}, {"name": "Not a name", "mode": "whole"}]},
            r"profiles\[1\]",
        ),
        ({"profiles": [{"name": "x", "mode": "time-sliced", "groups": ["ml101"]}]}, "memory"),
        ({"profiles": [{"name": "x", "mode": "whole", "coutn": 2}]}, "coutn"),
        ({"devices": [{"select": "*", "modes": ["hole"]}]}, r"devices\[0\].*hole"),
        ({"placement": "random"}, "random"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_place(settings: dict[str, Any], said: str) -> None:
    c = Config()
    with pytest.raises(ValueError, match=said):
        configure(c, **settings)
    assert plain(c) == {}


@pytest.mark.parametrize("agent", [None, {"name": "gpu-agent", "api_token": "x"}])
def test_an_agent_of_the_sites_own_has_the_role_if_it_has_a_token(agent: Any) -> None:
    """A role for a service that the hub does not know would keep the hub from starting."""
    given = [agent] if agent else []
    c = configured(lambda c: c.JupyterHub.update(services=given), agent="external")
    assert plain(c.JupyterHub.get("load_roles", [])) == ([AGENT_ROLE] if agent else [])
