"""The package as it is installed: light to import, found by the hub, and whole in its wheel."""

import json
import subprocess
import sys
import zipfile
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import lacking

ROOT = Path(__file__).parents[1]
HEAVY = (
    "jupyterhub", "docker", "dockerspawner", "sqlalchemy", "pynvml", "tornado", "traitlets",
    "pydantic", "alembic", "babel", "psutil", "gpuspawner.domain",
)  # fmt: skip


def python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout


def test_importing_the_package_imports_nothing_of_the_hubs_side() -> None:
    """The same wheel sits in notebook images, where none of it is installed."""
    code = "import sys, json, gpuspawner; print(json.dumps([gpuspawner.__version__, *sys.modules]))"
    version, *modules = json.loads(python(code))
    assert version
    roots = {name.split(".")[0] for name in modules}
    assert [name for name in HEAVY if name in roots or name in modules] == []


def test_the_command_line_and_the_agent_need_no_hub() -> None:
    code = "import sys, gpuspawner.cli.main, gpuspawner.agent.app; print(*sys.modules)"
    modules = python(code).split()
    assert [name for name in ("jupyterhub", "dockerspawner", "pynvml") if name in modules] == []


def test_entry_points_lead_to_our_classes() -> None:
    from jupyterhub.spawner import Spawner

    from gpuspawner.cli.main import main

    (command,) = entry_points(group="console_scripts", name="gpuspawner")
    assert command.load() is main
    found = {
        point.name: point.load()
        for point in entry_points(group="jupyterhub.spawners")
        if point.value.startswith("gpuspawner.")
    }
    assert {name: each.__name__ for name, each in found.items()} == {
        "gpu-docker": "GPUDockerSpawner", "gpu-local": "GPULocalSpawner",
    }  # fmt: skip
    assert all(issubclass(each, Spawner) for each in found.values())


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What ``jupyterhub --generate-config`` writes on this machine."""
    folder = tmp_path_factory.mktemp("generated")
    subprocess.run(
        [sys.executable, "-m", "jupyterhub", "--generate-config", "-f", "config.py"],
        check=True, cwd=folder, capture_output=True,
    )  # fmt: skip
    return (folder / "config.py").read_text()


def section(generated: str, name: str) -> str:
    """The lines of one class."""
    rule = "#------------------------------------------------------------------------------\n"
    parts = generated.split(rule)
    (at,) = [i for i, part in enumerate(parts) if part.startswith(f"# {name}(")]
    return parts[at + 1]


@pytest.mark.parametrize("name", ["GPUDockerSpawner", "GPULocalSpawner"])
def test_the_generated_configuration_lists_our_classes(generated: str, name: str) -> None:
    """A class that fails to import is left out without a word (H17)."""
    kind = {"GPUDockerSpawner": "gpu-docker", "GPULocalSpawner": "gpu-local"}[name]
    assert f"#    - {kind}: gpuspawner.spawners." in generated
    text = section(generated, name)
    for line in (
        "# c.{}.profiles = []", "# c.{}.devices = []", "# c.{}.placement = 'least-loaded'",
        "# c.{}.hub_id_file = 'gpuspawner_hub_id'", "# c.{}.concurrent_starts = 10",
        "# c.{}.retry_seconds = 60", "# c.{}.pull_seconds = 900", "# c.{}.language = 'en'",
    ):  # fmt: skip
        assert line.format(name) in text, line


def test_the_docker_spawners_own_settings_have_real_defaults(generated: str) -> None:
    text = section(generated, "GPUDockerSpawner")
    assert "# c.GPUDockerSpawner.attach = 'nvidia'" in text
    assert "# c.GPUDockerSpawner.home_path = '/home/jovyan'" in text
    assert "# c.GPUDockerSpawner.home_volume = '{prefix}-{hub_id}-{safe_user}'" in text
    assert "# c.GPULocalSpawner.home_dir_template = 'gpuspawner-homes/{safe_user}'" in generated


def test_nothing_of_ours_is_undefined(generated: str) -> None:
    from gpuspawner.config import GPUSettings
    from gpuspawner.spawners.docker import GPUDockerSpawner
    from gpuspawner.spawners.local import GPULocalSpawner

    values = dict(
        line.removeprefix("# c.").split(" = ", 1)
        for line in generated.splitlines()
        if line.startswith("# c.GPU")
    )
    ours = [
        f"{each.__name__}.{name}"
        for each in (GPUDockerSpawner, GPULocalSpawner)
        for name in {*GPUSettings.class_trait_names(config=True), *each.class_own_traits()}
        if each.class_traits()[name].metadata.get("config")
        and each.class_traits()[name].this_class.__module__.startswith("gpuspawner")
    ]
    assert len(ours) > 20
    assert {name: values[name] for name in ours if "Undefined" in values[name]} == {}


WATCHED = """
import sys
from gpuspawner import configure
from traitlets.config import Config
settings = {"simulate": "mixed-lab", "profiles": [{"name": "cpu", "title": "CPU only"}]}
configure(Config(), **settings)  # everything is imported
forbidden = ("open", "os.", "socket.", "subprocess.", "sqlite3.", "shutil.", "tempfile.")
sys.addaudithook(lambda event, args: event.startswith(forbidden) and print(event, args))
configure(Config(), **settings)
"""


def test_configuring_a_hub_only_changes_c(tmp_path: Path) -> None:
    """The file is also read by `jupyterhub token`, and by whoever checks it (H2)."""
    done = subprocess.run(
        [sys.executable, "-c", WATCHED], check=True, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, made as a release makes it."""
    if find_spec("hatchling") is None:
        lacking("hatchling is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        check=True, cwd=ROOT, capture_output=True,
    )  # fmt: skip
    (made,) = folder.glob("*.whl")
    return made


def test_the_wheel_holds_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    files = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "gpuspawner").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if ".dist-info/" not in name} == files
    kinds = {name.rsplit(".", 1)[-1] for name in files}
    assert {"py", "po", "html", "css"} <= kinds, kinds
    assert any("/migrations/versions/0001" in name for name in files)


def test_the_wheel_is_small_and_brings_nothing_along(wheel: Path) -> None:
    assert wheel.stat().st_size < 1_000_000
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith("/METADATA")]
        metadata = archive.read(name).decode()
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist:")]
    assert [line for line in required if "extra ==" not in line] == []
