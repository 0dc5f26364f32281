"""What ``configure`` makes of a hub that ran plain DockerSpawner before."""

from typing import Any

import pytest
from dockerspawner import DockerSpawner, SystemUserSpawner

from tests.test_hubconfig import configured

DOCKER = ("docker", "dockerspawner.DockerSpawner", DockerSpawner)


@pytest.mark.parametrize("present", DOCKER)
def test_a_hub_that_ran_dockerspawner_is_taken_over(present: Any) -> None:
    c = configured(lambda c: c.JupyterHub.update(spawner_class=present))
    assert c.JupyterHub.spawner_class == "gpu-docker"
    assert c.GPUDockerSpawner.keeps_docker_names is True


def test_its_own_word_on_names_counts() -> None:
    def site(c: Any) -> None:
        c.JupyterHub.spawner_class = "docker"
        c.GPUDockerSpawner.keeps_docker_names = False

    assert configured(site).GPUDockerSpawner.keeps_docker_names is False


@pytest.mark.parametrize("present", ["docker-swarm", SystemUserSpawner])
def test_a_spawner_whose_servers_cannot_be_carried_on_is_told(present: Any) -> None:
    with pytest.raises(ValueError, match="cannot be carried on"):
        configured(lambda c: c.JupyterHub.update(spawner_class=present))


OWN_HOMES = [
    {"home-{username}": "/home/jovyan/work"},
    {"/srv/homes/{username}": {"bind": "/data", "mode": "rw"}},
    {"homes": "/home"},
    {"homes": "/data/{username}"},
    {"/srv/data": "/data", "homes": {"bind": "/home/jovyan", "mode": "rw"}},
]


@pytest.mark.parametrize("volumes", OWN_HOMES)
def test_a_site_that_mounts_homes_itself_gets_no_second_one(volumes: dict[str, Any]) -> None:
    c = configured(lambda c: c.DockerSpawner.update(volumes=volumes))
    assert c.GPUDockerSpawner.home_path == ""
    c = configured(lambda c: c.GPUDockerSpawner.volumes.update(volumes))
    assert c.GPUDockerSpawner.home_path == ""

    def decided(c: Any) -> None:
        c.DockerSpawner.volumes = OWN_HOMES[0]
        c.GPUDockerSpawner.home_path = "/home/jovyan"

    assert configured(decided).GPUDockerSpawner.home_path == "/home/jovyan"


@pytest.mark.parametrize("volumes", [{}, {"/srv/data": "/data"}, {"/srv/data": "/homework"}])
def test_mounts_that_are_nobodys_home_leave_people_their_volume(volumes: dict[str, Any]) -> None:
    """Else what they write would go with their container at each stop."""
    c = configured(lambda c: c.DockerSpawner.update(volumes=volumes))
    assert "home_path" not in c.GPUDockerSpawner
