"""The GPUs that a host has had: each looked up and read for itself, in a thread of its own.

One that hangs costs a look its deadline once. From then on it is unknown and not waited for, and
gets no second call before the first one has come back.
"""

import logging
import time
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from gpuspawner.domain.devices import Device, DeviceUUID, HostId, Trouble, Unavailable
from gpuspawner.gpus import health
from gpuspawner.gpus import nvml_calls as codes
from gpuspawner.gpus.nvml_calls import Calls
from gpuspawner.gpus.nvml_device import Reading, read_device, refused
from gpuspawner.gpus.nvml_gpm import InstanceActivity
from gpuspawner.gpus.nvml_threads import Worker

_log = logging.getLogger(__name__)

SLOW_SECONDS = 30
"""How long the name and the power limit are good for."""


class GPUs:
    """The GPUs of one host by UUID, with their handles in the present NVML session.

    Args:
        host_id: the host whose GPUs these are.
        read_seconds: how long a look waits for the GPUs, all together.

    Attributes:
        stale: whether a new NVML session may help.
    """

    def __init__(self, host_id: HostId, read_seconds: float) -> None:
        self._host_id = host_id
        self._seconds = read_seconds
        self._known: dict[DeviceUUID, _Known] = {}
        self._found: dict[int, DeviceUUID] = {}  # index to UUID, in this session only
        self._refusals: dict[int, int] = {}  # index to NVML's code at the last try
        self._lookups: dict[int, Worker[_Lookup]] = {}
        self.stale = False

    @property
    def hang(self) -> bool:
        """Whether a call to one of them has not come back: then the session must not end."""
        return any(worker.busy for worker in self._lookups.values()) or any(
            known.reader.busy for known in self._known.values()
        )

    def give_up_samples(self) -> list[Any]:
        """Hand over the GPM samples of a session that is to end. Never while a call hangs."""
        return [each for known in self._known.values() for each in known.activity.give_up()]

    def forget_handles(self) -> None:
        """Forget what a session that has ended gave; what it said of the GPUs is kept."""
        self.stale = False
        self._found.clear()
        self._refusals.clear()
        self._lookups.clear()
        for known in self._known.values():
            known.handle = known.sampled_us = None

    def find(self, nvml: Any, count: int) -> None:
        """Look up the GPUs that have no handle yet, each for itself.

        A GPU is known by its UUID alone: one that does not answer shifts nobody else, although
        indexes may move between sessions (gpu mechanics 1.3).
        """
        self.stale = False
        missing = [index for index in range(count) if index not in self._found]
        for index in missing:
            worker = self._lookups.setdefault(index, Worker(f"nvml-lookup-{index}"))
            if not worker.asked:  # a late result is as good as a new one, in one session
                worker.ask(partial(_look_up, nvml, index))
        deadline = time.monotonic() + self._seconds
        for index in missing:
            try:
                found = self._lookups[index].result(deadline - time.monotonic())
            except TimeoutError:
                found = _Lookup(code=codes.TIMEOUT)
            except Exception:  # noqa: BLE001 - it is this one's, whatever it is
                _log.exception("the lookup of the GPU at index %d failed", index)
                found = _Lookup()
            if found.uuid is None:
                self._refuse(index, found.code)
            else:
                self._enter(index, found.uuid, found.handle)

    def _enter(self, index: int, uuid: DeviceUUID, handle: Any) -> None:
        self._refusals.pop(index, None)
        again = uuid in self._found.values()
        self._found[index] = uuid
        if again:  # one GPU under two indexes is one device
            return
        before = self._known[uuid].device if uuid in self._known else self._new(uuid, index)
        reader: Worker[Reading] = Worker(f"nvml-read-{index}")
        self._known[uuid] = _Known(replace(before, index=index), reader, handle)

    def _new(self, uuid: DeviceUUID, index: int) -> Device:
        return Device(uuid=uuid, host_id=self._host_id, index=index, model="", memory_mib=None)

    def _refuse(self, index: int, code: int) -> None:
        if self._refusals.get(index) != code:
            _log.warning("GPU at index %d cannot be looked up (NVML code %d)", index, code)
        self._refusals[index] = code
        self.stale = self.stale or code in codes.LOST_CODES | {codes.UNINITIALIZED}

    def read(self, nvml: Any, now: datetime) -> list[Device]:
        """Read all of them at the same time, and remember what they said."""
        asked = [known.ask(nvml, now) for known in self._known.values()]
        deadline = time.monotonic() + self._seconds
        for known, is_asked in zip(self._known.values(), asked, strict=True):
            if known.handle is None:
                why = self._why_missing(known.device.index)
                self.stale = self.stale or why.trouble is Trouble.LOST
                known.device = health.without_readings(known.device, why)
            elif is_asked:
                self._take(known, deadline - time.monotonic())
            else:
                self._unanswered(known)
        return [known.device for known in self._known.values()]

    def _take(self, known: "_Known", seconds: float) -> None:
        try:
            reading = known.reader.result(seconds)
        except TimeoutError:
            _log.warning("GPU %s does not answer within %g s", known.device.uuid, self._seconds)
            self._unanswered(known)
            return
        except Exception as error:  # noqa: BLE001 - it is this one's, whatever it is
            why = health.unknown(f"What the GPU answered could not be read ({error!r:.100}).")
            if known.device.unavailable != why:
                _log.exception("GPU %s could not be read", known.device.uuid)
            known.slow_read_at = None
            known.device = health.without_readings(known.device, why)
            return
        known.device = reading.device
        if reading.answers:
            known.sampled_us = reading.sampled_us
        else:
            known.slow_read_at = None  # its slow readings went with the others
        self.stale = self.stale or reading.stale

    def _unanswered(self, known: "_Known") -> None:
        """Leave a GPU whose call hangs. What the call returns in the end is dropped, as too old.

        The samples that it has seen are then not counted as seen, so that the next look does.
        """
        known.slow_read_at = None
        known.device = health.without_readings(known.device, health.unanswered(self._seconds))

    def unread(self, why: Unavailable) -> list[Device]:
        """Return them as last known; a host that was not asked says nothing new of its GPUs."""
        return [health.without_readings(known.device, why) for known in self._known.values()]

    def _why_missing(self, index: int) -> Unavailable:
        """Judge a known GPU that this session has no handle for.

        The code is that of the lookup at the index where it was last: at worst the word is wrong,
        never the GPU. Without a refused lookup there, it has left the bus.
        """
        code = self._refusals.get(index)
        if code == codes.TIMEOUT:
            return health.unanswered(self._seconds)
        if code is None or code in codes.LOST_CODES:
            return health.lost("not on the bus" if code is None else f"NVML code {code}")
        return refused(code)


@dataclass(slots=True)
class _Known:
    """A GPU that answered once, and its handle in the present session, if it has one."""

    device: Device
    reader: Worker[Reading]
    handle: Any = None
    slow_read_at: datetime | None = None
    sampled_us: int | None = None
    activity: InstanceActivity = field(default_factory=InstanceActivity)

    def ask(self, nvml: Any, now: datetime) -> bool:
        """Start a reading, unless there is no handle or the one before has not come back."""
        if self.handle is None or self.reader.busy:
            return False
        slow = past(self.slow_read_at, now, SLOW_SECONDS)
        if slow:
            self.slow_read_at = now
        self.reader.ask(
            partial(
                read_device,
                nvml,
                self.handle,
                self.device,
                now=now,
                sampled_us=self.sampled_us,
                activity=self.activity,
                slow=slow,
            )
        )
        return True


@dataclass(frozen=True, slots=True)
class _Lookup:
    """What the lookup of one index gave: a GPU, or the code of its failure."""

    uuid: DeviceUUID | None = None
    handle: Any = None
    code: int = codes.NO_ANSWER


def _look_up(nvml: Any, index: int) -> _Lookup:
    calls = Calls(nvml)
    uuid: DeviceUUID | None = None
    handle, code = calls.call("nvmlDeviceGetHandleByIndex", index)
    if code is None:
        uuid, code = calls.call("nvmlDeviceGetUUID", handle)
    return _Lookup(uuid or None, handle, codes.NO_ANSWER if code is None else code)


def past(since: datetime | None, now: datetime, seconds: int) -> bool:
    """Whether a time has passed. A clock that was set back counts as yes, or it might never."""
    return since is None or not timedelta() <= now - since < timedelta(seconds=seconds)
