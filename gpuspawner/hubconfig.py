"""``configure(c)``: one call wires a site's JupyterHub. Only changes ``c``; has no other effect.

The same file is also read by ``jupyterhub token`` and ``upgrade-db`` (hub facts H2), so nothing
is opened, created or asked here.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from traitlets.config.loader import LazyConfigValue

from gpuspawner.config import LEDGER_URL_VARIABLE, GPUSettings, default_ledger_url
from gpuspawner.domain.policy import parse_policy
from gpuspawner.hubid import DEFAULT_FILE, HUB_ID_FILE_VARIABLE, HUB_ID_VARIABLE
from gpuspawner.lifetime import HUB_PID_VARIABLE

SERVICE: Final = "gpu"
AGENT: Final = "gpu-agent"
ACCESS: Final = f"access:services!service={SERVICE}"
SERVER_TOKEN_SCOPES: Final = ("users:activity!user", "access:servers!server", ACCESS)
# For the agent to see which servers the hub knows; it may change nothing there.
AGENT_SCOPES: Final = ("list:users", "read:servers")
DEFAULT_PORT: Final = 8095

_WAYS: Final = ("managed", "external")
_OF_NO_USE_TO_NOTEBOOKS: Final = (
    "127.0.0.1", "::1", "localhost", "0.0.0.0", "::", "*",  # noqa: S104 - refused
)  # fmt: skip
_DOCKER_SPAWNER: Final = (
    "docker", "dockerspawner", "dockerspawner.DockerSpawner",
    "dockerspawner.dockerspawner.DockerSpawner",
)  # fmt: skip
_OTHER_SPAWNERS: Final = (
    "docker-swarm", "docker-system-user", "dockerspawner.SwarmSpawner",
    "dockerspawner.SystemUserSpawner", "dockerspawner.swarmspawner.SwarmSpawner",
    "dockerspawner.systemuserspawner.SystemUserSpawner",
)  # fmt: skip
_SPAWNER_SECTIONS: Final = (
    "DockerSpawner", "GPUSpawner", "GPUDockerSpawner", "LocalProcessSpawner",
    "SimpleLocalProcessSpawner", "GPULocalSpawner",
)  # fmt: skip


def configure(
    c: Any,
    *,
    service: str = "managed",
    agent: str = "managed",
    service_port: int = DEFAULT_PORT,
    simulate: str | None = None,
    **settings: Any,
) -> None:
    """Wire spawner, service, agent, token scopes and limits. The last call of a site's file.

    Args:
        c: the configuration object of ``jupyterhub_config.py``.
        service: ``managed`` (the hub starts it) or ``external`` (a unit of the site's own does;
            put its token into ``c.JupyterHub.services`` under the name ``gpu``).
        agent: likewise.
        service_port: where the service listens, on loopback and on the address that notebooks
            use for the hub.
        simulate: the name of a simulated lab, for a machine without GPUs.
        **settings: values of `gpuspawner.config.GPUSettings`: ``profiles``, ``devices``, ...

    Raises:
        ValueError: a setting is not known, or its value is wrong.
    """
    _check(service, agent, settings)
    for name, value in settings.items():
        c.GPUSpawner[name] = value
    _choose_spawner(c)
    # A limit of the hub's own would refuse CPU users while others wait for a GPU (H10).
    c.JupyterHub.setdefault("concurrent_spawn_limit", 0)
    # A restart of the hub is no reason to stop notebooks; a site may say otherwise.
    c.JupyterHub.setdefault("cleanup_servers", False)
    _append(c.JupyterHub, "extra_user_scopes", [ACCESS])
    _let_own_user_role_in(c)
    for name in _sections_that_set(c, "server_token_scopes"):
        if callable(c[name].get("server_token_scopes")):
            raise ValueError(  # noqa: TRY004 - a setting that is wrong, as all others here
                f"c.{name}.server_token_scopes is a callable: return also "
                f"{list(SERVER_TOKEN_SCOPES)} from it, and set it after configure(c)"
            )
        _append(c[name], "server_token_scopes", SERVER_TOKEN_SCOPES)
    environment = _environment(c, simulate)
    addresses = _notebook_addresses(c)
    _add_service(c, _service_spec(service, service_port, addresses, environment))
    if agent == "managed":
        _add_service(c, {"name": AGENT, "command": _command("agent"), "environment": environment})
    if any(each.get("name") == AGENT for each in _present(c.JupyterHub, "services", [])):
        _add_role(c, {"name": AGENT, "services": [AGENT], "scopes": list(AGENT_SCOPES)})
    if addresses:
        prefix = _base_url(c) + f"services/{SERVICE}/api/"
        api_url = f"http://{_in_url(addresses[0])}:{service_port}{prefix}"
        for name in _sections_that_set(c, "environment"):
            present = _present(c[name], "environment", {})
            c[name].environment = {"GPUSPAWNER_API_URL": api_url, **present}


def _choose_spawner(c: Any) -> None:
    """Take our spawner, or put it in DockerSpawner's place so that what it made lives on."""
    present = c.JupyterHub.get("spawner_class", "gpu-docker")
    if isinstance(present, type):
        present = f"{present.__module__}.{present.__qualname__}"
    if present in _DOCKER_SPAWNER:
        present = "gpu-docker"
        c.GPUDockerSpawner.setdefault("keeps_docker_names", True)
    elif present in _OTHER_SPAWNERS:
        raise ValueError(
            f"configure: c.JupyterHub.spawner_class is {present!r}, whose servers cannot be "
            "carried on: take the line away once they have all been stopped"
        )
    c.JupyterHub.spawner_class = present
    is_said = any("home_path" in c[each] for each in _SPAWNER_SECTIONS)
    mounts = [
        each for name in _SPAWNER_SECTIONS for each in _present(c[name], "volumes", {}).items()
    ]
    if not is_said and any(_keeps_homes(*each) for each in mounts):
        c.GPUDockerSpawner.home_path = ""  # a site that mounts homes of its own gets no second one


def _keeps_homes(source: Any, target: Any) -> bool:
    """Whether a mount of DockerSpawner's ``volumes`` is what people keep their files in.

    It is of one person, as ``home-{username}`` is, or lies where homes are.
    """
    path = str(target.get("bind", "") if isinstance(target, Mapping) else target)
    return "{" in f"{source}{path}" or path == "/home" or path.startswith("/home/")


def _check(service: str, agent: str, settings: Mapping[str, Any]) -> None:
    for name, way in (("service", service), ("agent", agent)):
        if way not in _WAYS:
            raise ValueError(f"configure: {name} must be one of {_WAYS}, got {way!r}")
    known = GPUSettings.class_trait_names(config=True)
    for name in settings:
        if name not in known:
            raise ValueError(
                f"configure: unknown setting {name!r}; known are {', '.join(sorted(known))}"
            )
    parse_policy(
        settings.get("profiles", []),
        settings.get("devices", []),
        settings.get("placement", "least-loaded"),
    )


def _append(section: Any, name: str, scopes: Any) -> None:
    """Add scopes to what the site has set, each once."""
    present = _present(section, name, [])
    section[name] = [*present, *(scope for scope in scopes if scope not in present)]


def _present(section: Any, name: str, empty: Any) -> Any:
    """Return what the site has set, also where it only called ``append`` or ``update`` on it."""
    value = section.get(name, empty)
    if not isinstance(value, LazyConfigValue):
        return value
    changes = value.to_dict()
    if isinstance(empty, dict):
        return dict(changes.get("update") or {})
    present = [*changes.get("prepend", ()), *changes.get("extend", ())]
    for at, item in changes.get("inserts", ()):
        present.insert(at, item)
    return [*present, *sorted(changes.get("update") or ())]


def _sections_that_set(c: Any, name: str) -> list[str]:
    """Return the sections of spawner classes in which a setting must stand to count.

    What a site sets for one class hides what stands on ``c.Spawner``.
    """
    return ["Spawner", *(each for each in _SPAWNER_SECTIONS if name in c[each])]


def _let_own_user_role_in(c: Any) -> None:
    """Add our scope to a ``user`` role of the site's own: it replaces the hub's (hub facts H2)."""
    roles = _present(c.JupyterHub, "load_roles", [])

    def is_redefined(role: Mapping[str, Any]) -> bool:
        # One without scopes is merged with the hub's own, which has ours by extra_user_scopes.
        return role.get("name") == "user" and "scopes" in role

    if any(map(is_redefined, roles)):
        c.JupyterHub.load_roles = [
            {**role, "scopes": list(dict.fromkeys([*role["scopes"], ACCESS]))}
            if is_redefined(role) else role
            for role in roles
        ]  # fmt: skip


def _base_url(c: Any) -> str:
    """Return the path below which the hub is served, with both slashes, as the hub finds it."""
    bound = urlsplit(str(c.JupyterHub.get("bind_url") or "")).path
    path = str(c.JupyterHub.get("base_url") or bound).strip("/")
    return f"/{path}/" if path else "/"


def _environment(c: Any, simulate: str | None) -> dict[str, str]:
    """Return what service and agent need to find the same books as the hub."""
    environment = {
        HUB_PID_VARIABLE: str(os.getpid()),  # this file is read by the hub itself
        LEDGER_URL_VARIABLE: str(_of_spawner(c, "ledger_url") or default_ledger_url()),
        HUB_ID_FILE_VARIABLE: str(_of_spawner(c, "hub_id_file") or DEFAULT_FILE),
    }
    if hub_id := _of_spawner(c, "hub_id"):
        environment[HUB_ID_VARIABLE] = str(hub_id)
    if language := _of_spawner(c, "language"):
        environment["GPUSPAWNER_LANGUAGE"] = str(language)
    if simulate:
        environment["GPUSPAWNER_SIMULATE"] = simulate
    environment.update(_engine_environment(c))
    return environment


def _engine_environment(c: Any) -> dict[str, str]:
    """Return what the agent needs to find the hub's engine; services inherit no variables."""
    names = ("DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")
    environment = {name: os.environ[name] for name in names if name in os.environ}
    for section in _sections_that_set(c, "client_kwargs"):
        address = _present(c[section], "client_kwargs", {}).get("base_url")
        if address:
            environment["DOCKER_HOST"] = str(address)
    return environment


def _of_spawner(c: Any, name: str) -> Any:
    """Return a setting from the most particular section of the spawner classes that has it."""
    values = [c[section].get(name) for section in ("Spawner", "GPUSettings", *_SPAWNER_SECTIONS)]
    return next((value for value in reversed(values) if value), None)


def _notebook_addresses(c: Any) -> list[str]:
    """Return the host under which containers reach the hub, if it is one they can use (H4).

    In the hub's own order: what is to be connected to, before what is listened on.
    """
    hub = c.JupyterHub
    for address in (
        _host_of(hub.get("hub_connect_url")),
        str(hub.get("hub_connect_ip") or ""),
        _host_of(hub.get("hub_bind_url")),
        str(hub.get("hub_ip") or ""),
    ):
        if address and address not in _OF_NO_USE_TO_NOTEBOOKS:
            return [address]
    return []


def _host_of(url: Any) -> str:
    """Return the host of a URL; empty where there is none, as with a Unix socket."""
    parts = urlsplit(str(url or ""))
    return (parts.hostname or "") if parts.scheme in ("http", "https") else ""


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _service_spec(
    way: str, port: int, addresses: list[str], environment: Mapping[str, str]
) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "name": SERVICE,
        "url": f"http://127.0.0.1:{port}",
        "display": True,
        "oauth_no_confirm": True,
    }
    spec["oauth_client_allowed_scopes"] = [ACCESS]
    if way == "managed":
        spec["command"] = _command("service")
        spec["environment"] = {**environment, "GPUSPAWNER_SERVICE_ADDRESSES": ",".join(addresses)}
    else:
        # The hub serves nobody while it waits for a unit that is away, 30 s unless told (P7).
        spec["timeout"] = 1
    return spec


def _add_role(c: Any, role: dict[str, Any]) -> None:
    """Add a role, unless the site has one of this name."""
    roles = list(_present(c.JupyterHub, "load_roles", []))
    if role["name"] not in {each.get("name") for each in roles}:
        c.JupyterHub.load_roles = [*roles, role]


def _command(name: str) -> list[str]:
    return [sys.executable, "-m", "gpuspawner", name]


def _add_service(c: Any, spec: dict[str, Any]) -> None:
    """Add a service, keeping what the site says of one with the same name (such as its token)."""
    services = list(_present(c.JupyterHub, "services", []))
    own = next((item for item in services if item.get("name") == spec["name"]), None)
    if own is None:
        services.append(spec)
    else:
        environment = {**spec.get("environment", {}), **own.get("environment", {})}
        services[services.index(own)] = {**spec, **own, "environment": environment}
    c.JupyterHub.services = services
