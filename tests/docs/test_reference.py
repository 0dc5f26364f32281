"""Everything that the code has is in the reference, and the reference has nothing else."""

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from gpuspawner.config import GPUSettings
from gpuspawner.domain.profiles import Profile
from gpuspawner.domain.reasons import Code
from gpuspawner.engines.docker import labels
from gpuspawner.spawners.docker import GPUDockerSpawner
from gpuspawner.spawners.local import GPULocalSpawner
from tests.docs.pages import ROOT
from tools.docs import cli, reasons
from tools.docs.settings import own_traits

REFERENCE = ROOT / "docs" / "reference"
PACKAGE = ROOT / "gpuspawner"
_VARIABLE = re.compile(r"(GPUSPAWNER|JUPYTERHUB|DOCKER|NVIDIA|CUDA|GPU|CONFIGPROXY)_[A-Z_]*[A-Z]")


def page(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def sources() -> list[Path]:
    return [*PACKAGE.rglob("*.py"), ROOT / "tools" / "demo.py", ROOT / "jupyterhub_config.py"]


def texts_in(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_every_setting() -> None:
    for cls in (GPUSettings, GPUDockerSpawner, GPULocalSpawner):
        assert set(own_traits(cls)) == set(cls.class_own_traits(config=True))
        for name in own_traits(cls):
            assert f"### `{name}`\n" in page("settings.md")


def test_every_verb_and_argument() -> None:
    for words, _, parser in cli.verbs():
        assert f"## `gpuspawner {words}`\n" in page("cli.md")
        for action in cli._actions(parser):
            assert f"`{action.option_strings[0] if action.option_strings else action.dest}" in page(
                "cli.md"
            )


def test_every_reason() -> None:
    for code in Code:
        assert f"### `{code}`\n" in page("reasons.md")


def test_which_reasons_are_not_given_yet() -> None:
    tellers = [
        file
        for file in PACKAGE.rglob("*.py")
        if "catalogue" not in file.parts and file.name != "reasons.py"
    ]
    given = set()
    for file in tellers:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "Code"
            ):
                given.add(Code[node.attr])
    assert set(Code) - given == reasons.NOT_GIVEN_YET


def test_every_variable() -> None:
    told = set(re.findall(r"`([A-Z_]+)`", page("environment.md")))
    used = {text for file in sources() for text in texts_in(file) if _VARIABLE.fullmatch(text)}
    assert used - told == set()
    elsewhere = {"GPUSPAWNER_SCREENSHOTS", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"}
    assert {name for name in told if _VARIABLE.fullmatch(name)} - used <= elsewhere


def test_every_label() -> None:
    ours = {value for value in vars(labels).values() if str(value).startswith("org.gpuspawner.")}
    assert set(re.findall(r"^\| `(org\.[^`]+)`", page("labels.md"), re.MULTILINE)) == ours


def test_every_key_of_a_profile() -> None:
    text = (ROOT / "docs/how-to/describe-your-gpus.md").read_text(encoding="utf-8")
    rows = text.split("## All keys of a profile", 1)[1].split("\n## ", 1)[0]
    told = set()
    for head in re.findall(r"^\| (`.*?) \|", rows, re.MULTILINE):
        told |= set(re.findall(r"`(\w+)`", head))
    known = {item.name for item in fields(Profile)} - {"memory_mib"} | {"memory"}
    assert told == known
