"""What DockerSpawner and our spawner really hand to docker-py, without an engine."""

import contextlib
from types import SimpleNamespace
from typing import Any

import docker
from dockerspawner import DockerSpawner
from jupyterhub import orm

from gpuspawner.domain.leases import Lease
from gpuspawner.domain.policy import Policy
from gpuspawner.ledger.store import Ledger
from gpuspawner.spawners.docker import GPUDockerSpawner
from gpuspawner.spawners.site import Site

IMAGE = {"Config": {"Cmd": ["start-notebook.sh"]}}
# A version given by name asks no engine.
CLIENT = {"base_url": "unix:///nowhere/docker.sock", "version": "1.41"}


class Upstream(DockerSpawner):
    """The real class; only its calls to the engine are taken down."""

    async def docker(self, method: str, *args: Any, **kwargs: Any) -> Any:
        if method == "create_container":
            self.asked = kwargs
            return {"Id": "made"}
        assert method == "inspect_image"
        return IMAGE


class Engine:
    """Stands for `DockerEngine`."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self._client = docker.APIClient(**CLIENT)

    def client(self) -> docker.APIClient:
        return self._client

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        if method == "create_container":
            self.asked = kwargs
            return {"Id": "made"}
        assert method == "inspect_image"
        return IMAGE

    def close(self) -> None:
        self._client.close()


def _hub_side(settings: dict[str, Any]) -> dict[str, Any]:
    """What a hub gives to a spawner."""
    return {
        "user": SimpleNamespace(
            name="ada", url="/user/ada/", escaped_name="ada", settings=settings,
            orm_user=SimpleNamespace(groups=[]),
        ),
        "hub": SimpleNamespace(
            public_host="", api_url="http://172.30.0.1:8081/hub/api", base_url="/hub/",
        ),
        "orm_spawner": SimpleNamespace(
            name="", user_options={},
            server=orm.Server(
                proto="http", ip="", port=8888, base_url="/user/ada/", cookie_name="ada"
            ),
        ),
        "api_token": "a-token", "oauth_client_id": "jupyterhub-user-ada",
    }  # fmt: skip


async def upstreams_request(**settings: Any) -> dict[str, Any]:
    """Return what the upstream class asks the engine for, with a site's settings."""
    spawner = Upstream(**_hub_side({}), **settings)
    with contextlib.closing(docker.APIClient(**CLIENT)) as Upstream._client:
        await spawner.create_object()
    return spawner.asked


async def our_request(lease: Lease | None = None, **settings: Any) -> dict[str, Any]:
    """Return what our class asks the engine for, with the same settings."""
    engine = Engine()
    site = Site(
        hub_id="hub", policy=Policy(), ledger=Ledger("sqlite:///unused.sqlite"),
        engine=engine, concurrent_starts=1,  # type: ignore[arg-type]
    )  # fmt: skip
    spawner = GPUDockerSpawner(**_hub_side({"gpuspawner_site": site}), **settings)
    spawner._lease = lease
    try:
        await spawner.create_object()
    finally:
        engine.close()
        for lanes in (site.lanes, site.pulls, site._books):
            lanes.close()
    return engine.asked
