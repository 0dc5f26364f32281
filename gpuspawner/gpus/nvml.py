"""The GPUs of this host, through NVIDIA's management library.

The one module that imports ``pynvml`` (the PyPI project nvidia-ml-py), and only when a look is
taken: hosts without a GPU or a driver import this file too.
"""

import logging
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import ModuleType
from typing import Any

from gpuspawner.domain.devices import (
    Device,
    DeviceUUID,
    HostId,
    HostInventory,
    Trouble,
    Unavailable,
)
from gpuspawner.gpus import health
from gpuspawner.gpus import nvml_calls as codes
from gpuspawner.gpus.nvml_calls import Calls
from gpuspawner.gpus.nvml_device import read_device, refused

_log = logging.getLogger(__name__)

SLOW_SECONDS = 30
"""How long the name and the power limit are good for."""
REOPEN_SECONDS = 60
"""The shortest time between two NVML sessions (gpu mechanics 1.11)."""
_REOPEN_AT_MOST_SECONDS = 480

_PACKAGE_MISSING = (
    "The Python package nvidia-ml-py is not installed: install 'gpuspawner[hub]' where the agent "
    "runs."
)
_TROUBLE = {
    codes.NO_PERMISSION: (
        "The agent may not open the NVIDIA devices (NVML code 4): run it as root, or give it the "
        "nodes /dev/nvidia*."
    ),
    codes.DRIVER_NOT_LOADED: (
        "The NVIDIA kernel driver is not loaded (NVML code 9): install or load it; "
        "'nvidia-smi' must work first."
    ),
    codes.LIBRARY_NOT_FOUND: (
        "The library libnvidia-ml.so.1 is not installed (NVML code 12): install the NVIDIA "
        "driver's libraries on this host."
    ),
    codes.LIB_RM_VERSION_MISMATCH: (
        "The NVIDIA library and the kernel driver have different versions (NVML code 18), as "
        "after an upgrade of the driver: restart the agent, and reboot the host if that is not "
        "enough."
    ),
}


class NVMLInventory:
    """One host's NVIDIA GPUs. All calls block, and belong into one thread.

    A GPU that was seen once stays in the list until this object ends: as lost while it does not
    answer, as unknown while it could not be asked. A GPU that never answered has no UUID, so it
    is no device yet; the log names its index.

    Attributes:
        needs_restart: whether only a new process can help, because the library in this one no
            longer fits the driver (NVML code 18; gpu mechanics 1.1).
    """

    def __init__(self, host_id: HostId) -> None:
        self._host_id = host_id
        self._nvml: ModuleType | None = None
        self._opened = False
        self._trouble: str | None = None
        self._driver_version: str | None = None
        self._known: dict[DeviceUUID, _Known] = {}
        self._found: dict[int, DeviceUUID] = {}  # index to UUID, in this session only
        self._refusals: dict[int, int] = {}  # index to NVML's code at the last try
        self._stale = False
        self._ladder = _Ladder()
        self.needs_restart = False

    def look(self, now: datetime) -> HostInventory:
        """Return what is there; never raises for the hardware's sake.

        Args:
            now: aware time of this look; the clock for slow readings and new sessions.
        """
        nvml = self._session(now)
        if nvml is None:
            return self._unasked(now)
        calls = Calls(nvml)
        count, code = calls.call("nvmlDeviceGetCount")
        if code is not None:
            self._stale = True
            self._trouble = self._explain(code, "NVML does not count the GPUs of this host")
            return self._unasked(now)
        self._find(calls, count)
        devices = [self._read(nvml, known, now) for known in self._known.values()]
        if not self._stale:
            self._ladder.calm()
        return HostInventory(
            host_id=self._host_id,
            observed_at=now,
            devices=tuple(sorted(devices, key=lambda device: (device.index, device.uuid))),
            driver_version=self._driver_version,
        )

    def close(self) -> None:
        """End the NVML session: it counts as a client, and a GPU with clients cannot be reset.

        The next look opens a new one at once.
        """
        self._end_session()
        self._ladder = _Ladder()

    def _session(self, now: datetime) -> ModuleType | None:
        """Return the binding with an open session, or ``None`` and say why in ``_trouble``."""
        if self._opened and not self._stale:
            return self._nvml
        if not self._ladder.due(now):
            return self._nvml if self._opened else None
        self._ladder.climb(now)
        self._end_session()
        self._trouble = self._open()
        self._opened = self._trouble is None
        if self._opened:
            assert self._nvml is not None
            self._driver_version = Calls(self._nvml).ask("nvmlSystemGetDriverVersion")
        else:
            _log.warning("%s", self._trouble)
        return self._nvml if self._opened else None

    def _open(self) -> str | None:
        """Open a session; return a sentence when it cannot be."""
        if self._nvml is None:
            try:
                import pynvml  # noqa: TID251 - the one lazy import, see the module's docstring
            except ImportError:
                return _PACKAGE_MISSING
            self._nvml = pynvml
        _, code = Calls(self._nvml).call("nvmlInit")
        self.needs_restart = False
        return None if code is None else self._explain(code, "NVML cannot be opened")

    def _explain(self, code: int, what: str) -> str:
        """Return a sentence on a failure of the whole host, and what to do about it."""
        self.needs_restart = code == codes.LIB_RM_VERSION_MISMATCH
        return _TROUBLE.get(code) or (
            f"{what} (NVML code {code}): see what 'nvidia-smi' and the kernel's log say."
        )

    def _end_session(self) -> None:
        """Shut NVML down and forget its handles; what it said of the GPUs is kept."""
        if self._opened:
            Calls(self._nvml).ask("nvmlShutdown")
        self._opened = self._stale = False
        self._found.clear()
        self._refusals.clear()
        for known in self._known.values():
            known.handle = None

    def _find(self, calls: Calls, count: int) -> None:
        """Look up the GPUs that have no handle yet, each for itself.

        A GPU is known by its UUID alone: one that does not answer shifts nobody else, although
        indexes may move between sessions (gpu mechanics 1.3).
        """
        self._stale = False
        for index in range(count):
            if index in self._found:
                continue
            uuid: DeviceUUID | None = None
            handle, code = calls.call("nvmlDeviceGetHandleByIndex", index)
            if code is None:
                uuid, code = calls.call("nvmlDeviceGetUUID", handle)
            if not uuid:
                self._refuse(index, codes.NO_ANSWER if code is None else code)
                continue
            self._refusals.pop(index, None)
            again = uuid in self._found.values()
            self._found[index] = uuid
            if again:  # one GPU under two indexes is one device
                continue
            before = self._known[uuid].device if uuid in self._known else self._new(uuid, index)
            self._known[uuid] = _Known(replace(before, index=index), handle)

    def _new(self, uuid: DeviceUUID, index: int) -> Device:
        return Device(uuid=uuid, host_id=self._host_id, index=index, model="", memory_mib=None)

    def _refuse(self, index: int, code: int) -> None:
        if self._refusals.get(index) != code:
            _log.warning("GPU at index %d cannot be looked up (NVML code %d)", index, code)
        self._refusals[index] = code
        self._stale = self._stale or code in codes.LOST_CODES | {codes.UNINITIALIZED}

    def _read(self, nvml: ModuleType, known: "_Known", now: datetime) -> Device:
        """Read one GPU, and remember what it said."""
        if known.handle is None:
            why = self._why_missing(known.device.index)
            self._stale = self._stale or why.trouble is Trouble.LOST
            known.device = health.without_readings(known.device, why)
            return known.device
        slow = _past(known.slow_read_at, now, SLOW_SECONDS)
        read = read_device(nvml, known.handle, known.device, slow=slow)
        if not read.answers:
            known.slow_read_at = None  # its slow readings went with the others
        elif slow:
            known.slow_read_at = now
        known.device = read.device
        self._stale = self._stale or read.stale
        return known.device

    def _why_missing(self, index: int) -> Unavailable:
        """Judge a known GPU that this session has no handle for.

        The code is that of the lookup at the index where it was last: at worst the word is wrong,
        never the GPU. Without a refused lookup there, it has left the bus.
        """
        code = self._refusals.get(index)
        if code is None or code in codes.LOST_CODES:
            return health.lost("not on the bus" if code is None else f"NVML code {code}")
        return refused(code)

    def _unasked(self, now: datetime) -> HostInventory:
        """Return the devices of the last good look, as unknown, with the host's trouble."""
        trouble = self._trouble or "The GPUs of this host could not be asked."
        why = health.unknown(trouble, "a look at the host that succeeds")
        devices = [health.without_readings(known.device, why) for known in self._known.values()]
        return HostInventory(
            host_id=self._host_id,
            observed_at=now,
            devices=tuple(sorted(devices, key=lambda device: (device.index, device.uuid))),
            driver_version=self._driver_version,
            trouble=trouble,
        )


@dataclass(slots=True)
class _Known:
    """A GPU that answered once, and its handle in the present session, if it has one."""

    device: Device
    handle: Any = None
    slow_read_at: datetime | None = None


@dataclass(slots=True)
class _Ladder:
    """When the next NVML session may be tried: at most once a minute, ever more rarely."""

    tried_at: datetime | None = None
    wait_seconds: int = 0

    def due(self, now: datetime) -> bool:
        return _past(self.tried_at, now, self.wait_seconds)

    def climb(self, now: datetime) -> None:
        self.tried_at = now
        doubled = min(2 * self.wait_seconds, _REOPEN_AT_MOST_SECONDS)
        self.wait_seconds = max(doubled, REOPEN_SECONDS)

    def calm(self) -> None:
        self.wait_seconds = REOPEN_SECONDS


def _past(since: datetime | None, now: datetime, seconds: int) -> bool:
    """Whether a time has passed. A clock that was set back counts as yes, or it might never."""
    return since is None or not timedelta() <= now - since < timedelta(seconds=seconds)
