"""Builds and drives the stand-in for NVIDIA's library; libnvidia_ml_double.c has its language."""

import ctypes
import importlib
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, MutableMapping
from pathlib import Path

SOURCE = Path(__file__).with_name("libnvidia_ml_double.c")
SONAME = "libnvidia-ml.so.1"
GIB = 1024**3
MIB = 1024**2


def compiler() -> str | None:
    return shutil.which("gcc")


def build(directory: Path, *flags: str) -> Path:
    """Compile the double into a directory of its own, fit for LD_LIBRARY_PATH."""
    library = directory / SONAME
    command = [compiler() or "gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror",
               "-pthread", f"-Wl,-soname,{SONAME}", *flags,
               "-o", str(library), str(SOURCE)]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return library


class Double(MutableMapping[str, object]):
    """The double's state file as a mapping: an assignment is seen by the next call."""

    def __init__(self, library: Path, state: Path) -> None:
        self.library, self.state = library, state
        self._lines: dict[str, object] = {}
        self._loaded = ctypes.CDLL(str(library))
        self._loaded.nvmlDoubleReset()

    def install(self, monkeypatch) -> None:
        """Put it under the real binding in this process (gpu mechanics 7.2)."""
        pynvml = importlib.import_module("pynvml")
        monkeypatch.setenv("NVML_DOUBLE_STATE", str(self.state))
        monkeypatch.setattr(pynvml, "nvmlLib", self._loaded)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})

    def environment(self) -> dict[str, str]:
        """What a process needs to find it in the library's place."""
        return {
            "LD_LIBRARY_PATH": str(self.library.parent),
            "NVML_DOUBLE_STATE": str(self.state),
            "PYTHONPATH": ":".join(path for path in sys.path if path),
        }

    def let_go(self, key: str) -> None:
        """End a hang, and wait until the calls of its thread have come back."""
        del self[key]
        for thread in threading.enumerate():
            if thread.name.startswith("nvml-"):
                thread.join(60)
                assert not thread.is_alive()

    def calls(self, symbol: str) -> int:
        return self._loaded.nvmlDoubleCalls(symbol.encode())

    def samples(self) -> tuple[int, int, int]:
        """GPM samples: how many live, were left by their session, and were used when dead."""
        counts = (ctypes.c_int * 3)()
        self._loaded.nvmlDoubleSamples(counts)
        return counts[0], counts[1], counts[2]

    def __getitem__(self, key: str) -> object:
        return self._lines[key]

    def __setitem__(self, key: str, value: object) -> None:
        self._lines[key] = value
        self._write()

    def __delitem__(self, key: str) -> None:
        del self._lines[key]
        self._write()

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def replace(self, lines: dict[str, object]) -> None:
        """Set the whole state at once."""
        self._lines = dict(lines)
        self._write()

    def _write(self) -> None:
        # Replaced as a whole: a call that hangs reads it again and again.
        fresh = self.state.with_suffix(".new")
        fresh.write_text("".join(f"{key}={value}\n" for key, value in self._lines.items()))
        fresh.replace(self.state)


def gpu(index: int, **more: object) -> dict[str, object]:
    """An A100 in good health, with one process that does nothing."""
    values = {
        "uuid": f"GPU-{index}", "name": "NVIDIA A100-SXM4-40GB", "total": 40 * GIB,
        "reserved": 600 * MIB, "used": (100 + index) * MIB, "util": 10 + index, "temp": 40 + index,
        "power": 60500 + index, "limit": 400000, "mig": 0, "remapped": "0,0,0,0", "field.230": 0,
        "field.31": 0, "processes": f"{1000 + index}:{(90 + index) * MIB}", "graphics": "",
        "mps": "", "samples": "",
    } | more  # fmt: skip
    return {f"gpu.{index}.{key}": value for key, value in values.items()}


def instance(gpu_index: int, slot: int, uuid: str, **more: object) -> dict[str, object]:
    """A 2g.10gb instance, whose real memory is a little below its name."""
    values = {
        "uuid": uuid, "name": "NVIDIA A100-SXM4-40GB MIG 2g.10gb", "total": 9856 * MIB,
        "reserved": 0, "used": (20 + slot) * MIB, "gi": 2, "ci": 2, "memory_mb": 9856,
        "gi_id": slot + 1, "processes": f"{2000 + slot}:{(10 + slot) * MIB}", "graphics": "",
        "mps": "",
    } | more  # fmt: skip
    return {f"gpu.{gpu_index}.mig.{slot}.{key}": value for key, value in values.items()}


def worked(gpu_index: int, passed: float, **shares: float) -> dict[str, object]:
    """So much time has passed, of which GPU instances (i1, i3) have worked so much."""
    return {f"gpu.{gpu_index}.gi.{key[1:]}.work": f"{x}/{passed}" for key, x in shares.items()}


def lab() -> dict[str, object]:
    """Three GPUs: one plain, one with holes among its instances, one that knows no MIG."""
    lines = {"driver": "580.95.05", **gpu(0), **gpu(1, mig=1), **gpu(2)}
    del lines["gpu.2.mig"]
    return {
        **lines,
        **instance(1, 0, "MIG-a"),
        **instance(1, 2, "MIG-GPU-1/3/0"),
        **instance(1, 5, "MIG-c"),
    }
