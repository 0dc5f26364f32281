"""How busy each instance of a partitioned GPU is, on the chips that tell it (Hopper and later).

NVML's GPM compares two samples of one GPU instance (gpu mechanics 1.12). So the newest sample of
each is kept from look to look, and every sample is memory of the library that must be given back.
Nothing here raises, and what is not known is ``None`` and never 0.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gpuspawner.domain.devices import DeviceUUID
from gpuspawner.gpus.nvml_calls import FUNCTION_NOT_FOUND, NOT_SUPPORTED, UNINITIALIZED, Calls

APART = timedelta(milliseconds=100)
"""The least time between two samples; the driver renews its counters no sooner (NVML header)."""

_GRAPHICS_UTIL = 1  # NVML_GPM_METRIC_…: share of time in which any work ran, 0.0 to 100.0
_METRICS_GET_VERSION = 1  # a plain number here, without the struct's size
_NEVER = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND})

_Key = tuple[DeviceUUID, int]  # an instance's UUID and the id of the GPU instance that it is in


@dataclass(frozen=True, slots=True)
class _Last:
    """The newest sample of a GPU instance, and what it gave with the one before it."""

    sample: Any
    taken_at: datetime
    busy_percent: int | None


class InstanceActivity:
    """The GPM samples of one GPU in one NVML session.

    It belongs to the readings of this GPU, of which there is one at a time, and to nobody else
    while one runs. A reading that comes back late leaves it whole: what it says is dropped, and its
    samples, with their true times, are where the next one begins.
    """

    def __init__(self) -> None:
        self._supported: bool | None = None  # None: not told yet
        self._last: dict[_Key, _Last] = {}
        self._mute: set[_Key] = set()  # those of which the driver has no such figure
        self._withheld: list[Any] = []  # samples that the library may no longer know

    def read(
        self,
        nvml: Any,
        handle: Any,
        migs: Mapping[DeviceUUID, Any] | None,
        clock: Callable[[], datetime],
    ) -> dict[DeviceUUID, int | None]:
        """Return how busy the instances were since the reading before, in percent.

        The calls here are judged by nobody else: a GPU that refuses them is no less well.

        Args:
            nvml: the binding.
            handle: the full GPU's handle.
            migs: handles of all its instances; ``None`` when not all could be listed.
            clock: the present time, by the same clock at each reading.

        Returns:
            The share of time in which work ran, 0 to 100, by instance. Who is not in it is unknown.
        """
        if migs is None or not (migs or self._last):
            return {}
        calls = Calls(nvml)
        if not self._asks(calls, handle):
            return {}
        found = _gpu_instances(calls, migs)
        if found is None:
            return {}
        # The figure is of a GPU instance: of several compute instances in it, it is nobody's.
        users = Counter(found.values())
        alone = {key for key in found.items() if users[key[1]] == 1}
        gone = [self._last.pop(key).sample for key in self._last.keys() - alone]
        _free(calls, gone)
        self._mute &= alone
        return {key[0]: self._read_one(calls, handle, key, clock) for key in sorted(alone)}

    def give_up(self) -> list[Any]:
        """Return all samples, and know of none from now on. Never while a reading runs."""
        samples = [*self._withheld, *(last.sample for last in self._last.values())]
        self._withheld.clear()
        self._last.clear()
        return samples

    def _asks(self, calls: Calls, handle: Any) -> bool:
        """Whether to ask this GPU; it says so once in a session, unless it fails for the moment."""
        if self._supported is None:
            support, code = calls.call("nvmlGpmQueryDeviceSupport", handle)
            if code is None:
                self._supported = bool(support.isSupportedDevice)
            elif code in _NEVER:
                self._supported = False
        return self._supported is True

    def _read_one(
        self, calls: Calls, handle: Any, key: _Key, clock: Callable[[], datetime]
    ) -> int | None:
        if key in self._mute or not self._supported:
            return None
        last, asked_at = self._last.get(key), clock()
        if last is not None and timedelta() <= asked_at - last.taken_at < APART:
            return last.busy_percent
        sample, code = calls.call("nvmlGpmSampleAlloc")
        if code is None:
            _, code = calls.call("nvmlGpmMigSampleGet", handle, key[1], sample)
        taken_at = clock()
        busy_percent = None
        # After a clock was set back nobody knows how far apart the two are.
        if code is None and last is not None and asked_at >= last.taken_at:
            busy_percent, code = _busy_between(calls, last.sample, sample)
        if code is not None:
            self._begin_anew(calls, key, sample, code)
            return None
        if last is not None:
            _free(calls, [last.sample])
        self._last[key] = _Last(sample, taken_at, busy_percent)
        return busy_percent

    def _begin_anew(self, calls: Calls, key: _Key, sample: Any, code: int) -> None:
        """Forget an instance's samples after a failure, and whom not to ask again."""
        last = self._last.pop(key, None)
        samples = [] if last is None else [last.sample]
        if sample is not None:
            samples.append(sample)
        if code == UNINITIALIZED:  # somebody ended the session, and the samples with it
            self._supported = False
            self._withheld += samples
            return
        if code in _NEVER:
            self._mute.add(key)
        _free(calls, samples)


def free_before_shutdown(nvml: Any, samples: Iterable[Any]) -> None:
    """Free samples of a session that is about to end; of one that somebody has ended, none.

    What a library does with a sample from an ended session nobody tells, so it gets none to see.
    """
    samples, calls = list(samples), Calls(nvml)
    if not samples or calls.call("nvmlSystemGetDriverVersion")[1] == UNINITIALIZED:
        return
    _free(calls, samples)


def _free(calls: Calls, samples: Iterable[Any]) -> None:
    """Free each once: one that could not be freed is left alone, as it may be free already."""
    for sample in samples:
        calls.ask("nvmlGpmSampleFree", sample)


def _gpu_instances(calls: Calls, migs: Mapping[DeviceUUID, Any]) -> dict[DeviceUUID, int] | None:
    """Return the GPU instance that each instance is in.

    ``None`` if one of them does not tell it: any of the others might share it.
    """
    found = {}
    for uuid, mig in migs.items():
        gpu_instance_id, code = calls.call("nvmlDeviceGetGpuInstanceId", mig)
        if code is not None:
            return None
        found[uuid] = int(gpu_instance_id)
    return found


def _busy_between(calls: Calls, older: Any, newer: Any) -> tuple[int | None, int | None]:
    """Return the busy share between two samples in whole percent, and the code of a failure.

    The call succeeds although its metric does not, which has a code of its own.
    """
    query = calls.nvml.c_nvmlGpmMetricsGet_t()
    query.version = _METRICS_GET_VERSION
    query.numMetrics = 1
    query.sample1, query.sample2 = older, newer
    query.metrics[0].metricId = _GRAPHICS_UTIL
    query.metrics[0].value = math.nan  # what nobody fills in must not pass for idle
    _, code = calls.call("nvmlGpmMetricsGet", query)
    if code is None and query.metrics[0].nvmlReturn:
        code = int(query.metrics[0].nvmlReturn)
    if code is not None:
        return None, code
    share = query.metrics[0].value
    return (int(share + 0.5) if 0 <= share <= 100 else None), None  # NaN is not within
