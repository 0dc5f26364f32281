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


def test_a_site_that_mounts_homes_itself_gets_no_second_one() -> None:
    volumes = {"home-{username}": "/home/jovyan/work"}
    c = configured(lambda c: c.DockerSpawner.update(volumes=volumes))
    assert c.GPUDockerSpawner.home_path == ""

    def decided(c: Any) -> None:
        c.DockerSpawner.volumes = volumes
        c.GPUDockerSpawner.home_path = "/home/jovyan"

    assert configured(decided).GPUDockerSpawner.home_path == "/home/jovyan"
