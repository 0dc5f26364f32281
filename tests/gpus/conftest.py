import importlib.util
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuspawner.domain.devices import HostId
from gpuspawner.gpus.nvml import NVMLInventory

_DOUBLE = Path(__file__).parents[1] / "doubles" / "nvml" / "double.py"
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


@pytest.fixture
def double(nvml_library, tmp_path, monkeypatch):
    made = nvml_double.Double(nvml_library, tmp_path / "state")
    made.install(monkeypatch)
    made.replace(nvml_double.lab())
    return made


@pytest.fixture
def old_double(old_nvml_library, tmp_path, monkeypatch):
    made = nvml_double.Double(old_nvml_library, tmp_path / "state")
    made.install(monkeypatch)
    made.replace(nvml_double.lab())
    return made


@pytest.fixture
def inventory(double):
    made = NVMLInventory(HostId("host-a"))
    yield made
    made.close()


@pytest.fixture
def at():
    """A time so many seconds after the start of the test's clock."""
    return lambda seconds=0: START + timedelta(seconds=seconds)
