"""The GPUs of this host, through NVIDIA's management library.

The one module that imports ``pynvml`` (the PyPI project nvidia-ml-py), and only when a look is
taken: hosts without a GPU or a driver import this file too.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from types import ModuleType
from typing import Any

from gpuspawner.domain.devices import Device, HostId, HostInventory
from gpuspawner.gpus import health
from gpuspawner.gpus import nvml_calls as codes
from gpuspawner.gpus.nvml_calls import Calls
from gpuspawner.gpus.nvml_gpm import free_before_shutdown
from gpuspawner.gpus.nvml_gpus import GPUs, past
from gpuspawner.gpus.nvml_threads import Worker

_log = logging.getLogger(__name__)

READ_SECONDS = 3.0
"""How long a look waits for an answer of the host, then of the lookups, and then of the GPUs."""
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
    """One host's NVIDIA GPUs. All calls block, for a few times ``read_seconds`` at most.

    They belong into one thread; what goes to the driver runs in threads of its own, which may hang
    there. While one does, the NVML session neither ends nor begins anew: that might hang as well.

    A GPU that was seen once stays in the list until this object ends: as lost while it does not
    answer, as unknown while it could not be asked. A GPU that never answered has no UUID, so it
    is no device yet; the log names its index.

    Args:
        host_id: the host whose GPUs these are.
        read_seconds: how long to wait for calls that may hang.

    Attributes:
        needs_restart: whether only a new process can help, because the library in this one no
            longer fits the driver (NVML code 18; gpu mechanics 1.1).
    """

    def __init__(self, host_id: HostId, read_seconds: float = READ_SECONDS) -> None:
        self._host_id = host_id
        self._seconds = read_seconds
        self._nvml: ModuleType | None = None
        self._opened = False
        self._closing = False
        self._trouble: str | None = None
        self._driver_version: str | None = None
        self._gpus = GPUs(host_id, read_seconds)
        self._ladder = _Ladder()
        self._opener: Worker[_Opened] = Worker("nvml-open")
        self._counter: Worker[tuple[Any, int | None]] = Worker("nvml-count")
        self._closer: Worker[object] = Worker("nvml-close")
        self.needs_restart = False

    def look(self, now: datetime) -> HostInventory:
        """Return what is there; never raises for the hardware's sake.

        Args:
            now: aware time of this look; the clock for slow readings, samples and new sessions.
        """
        nvml = self._session(now)
        count = None if nvml is None else self._count(nvml)
        if nvml is None or count is None:
            return self._unasked(now)
        self._gpus.find(nvml, count)
        devices = self._gpus.read(nvml, now)
        if not self._gpus.stale:
            self._ladder.calm()
        return self._inventory(now, devices)

    def close(self) -> None:
        """End the NVML session: it counts as a client, and a GPU with clients cannot be reset.

        The next look opens a new one at once. While a call hangs the session goes on, and ends at
        the first look after that.
        """
        self._ladder = _Ladder()
        self._closing = True
        if self._hang:
            return
        if self._opener.asked:  # opened after its look had given up
            self._opened = self._open() is None
        self._end_session()

    @property
    def _hang(self) -> bool:
        """Whether a call has not come back."""
        return self._opener.busy or self._counter.busy or self._closer.busy or self._gpus.hang

    def _session(self, now: datetime) -> ModuleType | None:
        """Return the binding with an open session, or ``None`` and say why in ``_trouble``."""
        if not self._opened or self._gpus.stale or self._closing:
            self._renew(now)
        return self._nvml if self._opened else None

    def _renew(self, now: datetime) -> None:
        """End the session, if there is one, and open a new one, as soon as that may be tried."""
        if self._hang:
            if not self._opened:
                self._fail(self._late())
            return
        if not self._opener.asked:
            if not self._ladder.due(now):
                return
            self._end_session()
            if self._closer.busy:
                self._fail(self._late())
                return
            self._ladder.climb(now)
        trouble = self._open()
        self._opened = trouble is None
        self._fail(trouble)

    def _fail(self, trouble: str | None) -> None:
        """Keep the host's trouble, or that there is none; the log has each once."""
        if trouble is not None and trouble != self._trouble:
            _log.warning("%s", trouble)
        self._trouble = trouble

    def _open(self) -> str | None:
        """Open a session; return a sentence when it cannot be, or not in time.

        One that comes late is good for the next look.
        """
        if self._nvml is None:
            try:
                import pynvml  # noqa: TID251 - the one lazy import, see the module's docstring
            except ImportError:
                return _PACKAGE_MISSING
            self._nvml = pynvml
        if not self._opener.asked:
            self._opener.ask(partial(_open_session, self._nvml))
        try:
            answer = self._opener.result(self._seconds)
        except TimeoutError:
            return self._late()
        self.needs_restart = False
        if answer.code is not None:
            return self._explain(answer.code, "NVML cannot be opened")
        self._driver_version = answer.driver_version
        return None

    def _count(self, nvml: ModuleType) -> int | None:
        """Return how many GPUs there are, or ``None`` and say why in ``_trouble``."""
        if not self._counter.asked:
            self._counter.ask(partial(Calls(nvml).call, "nvmlDeviceGetCount"))
        try:
            count, code = self._counter.result(self._seconds)
        except TimeoutError:
            self._fail(self._late())
            return None
        if code is not None:
            self._gpus.stale = True
            self._fail(self._explain(code, "NVML does not count the GPUs of this host"))
            return None
        self._trouble = None
        return int(count)

    def _explain(self, code: int, what: str) -> str:
        """Return a sentence on a failure of the whole host, and what to do about it."""
        self.needs_restart = code == codes.LIB_RM_VERSION_MISMATCH
        return _TROUBLE.get(code) or (
            f"{what} (NVML code {code}): see what 'nvidia-smi' and the kernel's log say."
        )

    def _late(self) -> str:
        return (
            f"The host's GPUs do not answer within {self._seconds:g} s: see what 'nvidia-smi' and "
            "the kernel's log say."
        )

    def _end_session(self) -> None:
        """Shut NVML down and forget its handles. Never while a call hangs."""
        if self._opened:
            samples = self._gpus.give_up_samples()
            self._closer.ask(partial(_close_session, self._nvml, samples))
            try:
                self._closer.result(self._seconds)
            except TimeoutError:
                _log.warning("The NVML session does not end within %g s", self._seconds)
        self._opened = self._closing = False
        self._gpus.forget_handles()

    def _unasked(self, now: datetime) -> HostInventory:
        """Return the devices of the last good look, as unknown, with the host's trouble."""
        trouble = self._trouble or "The GPUs of this host could not be asked."
        why = health.unknown(trouble, "a look at the host that succeeds")
        return self._inventory(now, self._gpus.unread(why), trouble)

    def _inventory(
        self, now: datetime, devices: Iterable[Device], trouble: str | None = None
    ) -> HostInventory:
        return HostInventory(
            host_id=self._host_id,
            observed_at=now,
            devices=tuple(sorted(devices, key=lambda device: (device.index, device.uuid))),
            driver_version=self._driver_version,
            trouble=trouble,
        )


@dataclass(frozen=True, slots=True)
class _Opened:
    """What opening a session gave: the driver's version, or the code of the failure."""

    code: int | None
    driver_version: str | None = None


def _open_session(nvml: Any) -> _Opened:
    calls = Calls(nvml)
    _, code = calls.call("nvmlInit")
    if code is not None:
        return _Opened(code)
    return _Opened(None, calls.ask("nvmlSystemGetDriverVersion"))


def _close_session(nvml: Any, samples: Sequence[Any]) -> None:
    free_before_shutdown(nvml, samples)
    Calls(nvml).ask("nvmlShutdown")


@dataclass(slots=True)
class _Ladder:
    """When the next NVML session may be tried: at most once a minute, ever more rarely."""

    tried_at: datetime | None = None
    wait_seconds: int = 0

    def due(self, now: datetime) -> bool:
        return past(self.tried_at, now, self.wait_seconds)

    def climb(self, now: datetime) -> None:
        self.tried_at = now
        doubled = min(2 * self.wait_seconds, _REOPEN_AT_MOST_SECONDS)
        self.wait_seconds = max(doubled, REOPEN_SECONDS)

    def calm(self) -> None:
        self.wait_seconds = REOPEN_SECONDS
