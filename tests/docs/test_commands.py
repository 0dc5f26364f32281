"""Every command in README and docs is run, or stands in the one table of those that cannot be."""

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Command, all_pages, commands, name_of
from tests.docs.sessions import ELSEWHERE, NOT_HERE, SCENES, Session, fill
from tests.rig.engine import OwnedEngine

ALL = [(page, command) for page in all_pages() for command in commands(page)]


def runnable(name: str) -> list[Command]:
    return [command for command in commands(ROOT / name) if command.text not in NOT_HERE]


def test_every_command_is_run_or_listed_with_the_reason_why_not() -> None:
    for page, command in ALL:
        run = name_of(page) in SCENES or name_of(page) in ELSEWHERE
        assert run or command.text in NOT_HERE, f"{command.where}: {command.text}"
        assert command.text in NOT_HERE or not command.by_root, command.where


def test_the_tables_name_nothing_that_is_gone() -> None:
    assert set(NOT_HERE) - {command.text for _, command in ALL} == set()
    for name in (*SCENES, *ELSEWHERE):
        assert runnable(name), name


@pytest.mark.parametrize("name", [name for name, scene in SCENES.items() if not scene.engine])
def test_what_a_page_shows_is_what_happens(name: str, tmp_path: Path) -> None:
    fill(tmp_path, SCENES[name].holders, trouble=SCENES[name].trouble)
    session = Session(tmp_path)
    for command in runnable(name):
        session.run(command)


@pytest.mark.engine
@pytest.mark.parametrize("name", [name for name, scene in SCENES.items() if scene.engine])
def test_what_a_page_shows_on_an_engine(
    name: str, tmp_path: Path, engine: OwnedEngine, stub_image: str
) -> None:
    fill(tmp_path, SCENES[name].holders)
    client = engine.client()
    try:
        for image in ("lab/pytorch", "lab/jax"):
            client.tag(stub_image, image, "2026.2")
        client.create_container(stub_image, name="jupyter-ada")
    finally:
        client.close()
    session = Session(tmp_path, {"DOCKER_HOST": engine.url})
    for command in runnable(name):
        session.run(command)
