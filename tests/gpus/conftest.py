import importlib.util
import os
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuspawner.domain.devices import HostId
from gpuspawner.gpus.nvml import NVMLInventory

_DOUBLE = Path(__file__).parents[1] / "doubles" / "nvml" / "double.py"
PATIENCE_SECONDS = 60  # a look's deadline where nothing hangs, however busy the machine is
START = datetime(2026, 9, 1, 8, 0, tzinfo=UTC)


def _load_double():
    spec = importlib.util.spec_from_file_location("nvml_double", _DOUBLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["nvml_double"] = module
    spec.loader.exec_module(module)
    return module


nvml_double = _load_double()


def _built(tmp_path_factory, *flags):
    if nvml_double.compiler() is None:
        reason = "gcc is not installed, and the NVML double is made with it"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return nvml_double.build(tmp_path_factory.mktemp("nvml"), *flags)


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory):
    return _built(tmp_path_factory)


@pytest.fixture(scope="session")
def old_nvml_library(tmp_path_factory):
    return _built(tmp_path_factory, "-DOLD_DRIVER")


def nvml_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("nvml-")]


def _installed(library, tmp_path, monkeypatch):
    made = nvml_double.Double(library, tmp_path / "state")
    made.install(monkeypatch)
    made.replace(nvml_double.lab())
    yield made
    made.replace({})  # whatever hangs comes back, and must not meet the next test's double
    for thread in nvml_threads():
        thread.join(PATIENCE_SECONDS)
    assert nvml_threads() == []


@pytest.fixture
def double(nvml_library, tmp_path, monkeypatch):
    yield from _installed(nvml_library, tmp_path, monkeypatch)


@pytest.fixture
def old_double(old_nvml_library, tmp_path, monkeypatch):
    yield from _installed(old_nvml_library, tmp_path, monkeypatch)


@pytest.fixture
def inventory(double):
    made = NVMLInventory(HostId("host-a"), PATIENCE_SECONDS)
    yield made
    made.close()


@pytest.fixture
def at():
    """A time so many seconds after the start of the test's clock."""
    return lambda seconds=0: START + timedelta(seconds=seconds)


@pytest.fixture
def us(at):
    """Microseconds of the test's clock, so many seconds after its start."""
    return lambda seconds=0.0: int(at(seconds).timestamp() * 1_000_000)


@pytest.fixture
def hopper(double):
    """Its GPU 1 has GPM, and three instances of which each is alone in its GPU instance."""
    double["gpu.1.gpm"] = 1
    double.update(nvml_double.worked(1, 0, i1=0, i3=0, i6=0))
    return double


@pytest.fixture
def looks(hopper, inventory, at):
    """One look after another: each has what was worked in the 100 units of time before it."""
    total, passed = {"i1": 0.0, "i3": 0.0, "i6": 0.0}, 0

    def look(i1=25, i3=0, i6=100):
        nonlocal passed
        passed += 100
        for key, more in (("i1", i1), ("i3", i3), ("i6", i6)):
            total[key] += more
        hopper.update(nvml_double.worked(1, passed, **total))
        return inventory.look(at(passed / 10))

    return look
