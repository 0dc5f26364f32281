"""Simulated GPUs: a lab that behaves like NVML's view of one, for demos, tests and planning.

State lives in a small JSON file (see `gpuspawner.gpus.simulated_state`), so that several
processes see the same lab; a lab without a file keeps its state in this object.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import EllipsisType

from gpuspawner.domain.devices import DeviceUUID, HostId, HostInventory
from gpuspawner.gpus import health, simulated_processes, simulated_state, simulated_view
from gpuspawner.gpus.presets import DRIVER_VERSION
from gpuspawner.gpus.simulated_lab import DeviceState, Lab, SimulatedDevice
from gpuspawner.gpus.simulated_processes import SimulatedProcess
from gpuspawner.gpus.simulated_state import Reading, State


class SimulatedInventory:
    """One host of simulated GPUs, and the means to break them.

    The same host and preset always give the same UUIDs; two hosts never share one. Methods that
    change something write the state file, if there is one; they raise ``ValueError`` with one
    sentence for what no hardware could do, and change nothing then. Two processes that change
    the file at the same instant: the later one wins.
    """

    def __init__(self, host_id: HostId, preset: str | Path, state_path: Path | None = None) -> None:
        """Make a lab.

        Args:
            host_id: the host that it plays.
            preset: a preset's name, or the path of a state file that names its preset.
            state_path: where its state lives; need not exist yet.

        Raises:
            ValueError: no such preset, or a state file that names none.
            OSError: ``preset`` is a path that cannot be read.
        """
        if isinstance(preset, Path):
            state_path = preset
            preset = simulated_state.preset_of(preset.read_text(encoding="utf-8"))
        self._lab = Lab(host_id, preset)
        self._path = state_path
        self._state = simulated_state.initial(self._lab)
        self._read: bytes | None = None  # the file's content as last taken in, good or bad
        self._problem: str | None = None
        self._lock = threading.Lock()  # looks come from a worker thread, changes from a test's

    def look(self, now: datetime) -> HostInventory:
        """Return the lab as its state is now; a bad state file is trouble, never an exception."""
        with self._lock:
            self._reload()
            state, trouble = self._state, self._problem or self._state.trouble
        devices = [
            simulated_view.observe(self._lab.host_id, device, state)
            for device in self._lab.devices.values()
        ]
        if trouble is not None:  # as with real hardware: what was there, and nothing about it
            why = health.unknown(trouble, "a look at the host that succeeds")
            devices = [health.without_readings(device, why) for device in devices]
        return HostInventory(
            host_id=self._lab.host_id,
            observed_at=now,
            devices=tuple(devices),
            simulated=True,
            driver_version=DRIVER_VERSION,
            trouble=trouble,
        )

    def close(self) -> None:
        """Let go of nothing: there is no hardware."""

    def lose(self, uuid: DeviceUUID) -> None:
        """Let a GPU fall off the bus."""
        self._change_device(uuid, lambda _, state: replace(state, lost=True))

    def return_(self, uuid: DeviceUUID) -> None:
        """Let a lost GPU answer again."""
        self._change_device(uuid, lambda _, state: replace(state, lost=False))

    def xid(self, uuid: DeviceUUID, number: int) -> None:
        """Let the driver report an Xid; one that comes from a user's program changes nothing."""
        if number in health.APPLICATION_XIDS:
            self._lab.device(uuid)
            return
        self._change_device(uuid, lambda _, state: replace(state, xid=number))

    def clear(self, uuid: DeviceUUID) -> None:
        """Let a GPU be well again after an Xid, as after a reset."""
        self._change_device(uuid, lambda _, state: replace(state, xid=None))

    def partition(self, uuid: DeviceUUID, on: bool) -> None:
        """Turn partitioning (MIG) on, without instances, or off, with the end of all instances."""
        self._change_device(
            uuid, lambda device, state: device.with_layout(state, () if on else None)
        )

    def relayout(self, uuid: DeviceUUID, layout: Sequence[str]) -> None:
        """Make new instances in place of all old ones; each gets a UUID that never was before.

        Args:
            uuid: a partitioned GPU.
            layout: profiles such as ``3g.20gb``, or ``3g.20gb:4`` to say where one begins, which
                may leave holes. They are placed as well as can be, whatever their order.
        """

        def change(device: SimulatedDevice, state: DeviceState) -> DeviceState:
            if not state.partitioned:
                raise ValueError(f"{uuid} is not partitioned: turn that on first")
            return device.with_layout(state, tuple(layout))

        self._change_device(uuid, change)

    def set_load(
        self,
        uuid: DeviceUUID,
        *,
        used_mib: Reading | EllipsisType = ...,
        busy_percent: Reading | EllipsisType = ...,
    ) -> None:
        """Set what a GPU or an instance shows; ``None`` is an unknown reading.

        Args:
            uuid: of a GPU that is not partitioned, or of an instance.
            used_mib: memory in use, in MiB; left out, it stays as it is.
            busy_percent: share of time with work, 0 to 100; only for a GPU.
        """
        given = {"used_mib": used_mib, "busy_percent": busy_percent}
        with self._changing() as change:
            loads = dict(self._state.loads)
            load = {
                key: value for key, value in given.items() if not isinstance(value, EllipsisType)
            }
            loads[uuid] = {**loads.get(uuid, {}), **load}
            change(replace(self._state, loads=loads))

    def run(
        self,
        pid: int,
        uuid: DeviceUUID,
        *,
        memory_mib: Reading,
        busy_percent: Reading | EllipsisType = ...,
        mps: bool = False,
    ) -> None:
        """Let a process run on a GPU or an instance; again for the same two: in its place.

        Args:
            pid: the host's number for it. Nobody looks whether there is such a process.
            uuid: of a GPU that is not partitioned, or of an instance.
            memory_mib: what it uses, in MiB; ``None`` is an unknown reading.
            busy_percent: share of time in which its kernels run, 0 to 100, ``None`` if unknown;
                left out, 0. Only for a GPU: on an instance it is always unknown.
            mps: whether it is a client of MPS.
        """
        with self._changing() as change:
            if isinstance(busy_percent, EllipsisType):
                busy_percent = simulated_processes.idle(uuid, self._lab.devices)
            process = SimulatedProcess(
                pid=pid, uuid=uuid, memory_mib=memory_mib, busy_percent=busy_percent, mps=mps
            )
            others = (x for x in self._state.processes if (x.pid, x.uuid) != (pid, uuid))
            change(replace(self._state, processes=(*others, process)))

    def end(self, pid: int) -> None:
        """Let a process end on each GPU and instance where it runs, if it runs at all."""
        with self._changing() as change:
            left = tuple(item for item in self._state.processes if item.pid != pid)
            change(replace(self._state, processes=left))

    def trouble(self, text: str | None) -> None:
        """Let the whole host be unable to ask its GPUs, with a sentence; ``None`` ends it."""
        with self._changing() as change:
            change(replace(self._state, trouble=text or None))

    def _change_device(
        self, uuid: DeviceUUID, rule: Callable[[SimulatedDevice, DeviceState], DeviceState]
    ) -> None:
        with self._changing() as change:
            device = self._lab.device(uuid)
            before = self._state.devices[uuid]
            after = rule(device, before)
            state = replace(self._state, devices={**self._state.devices, uuid: after})
            if after.generation != before.generation:  # its work and its instances are gone
                old = (item.uuid for item in device.instances(before))
                state = simulated_state.without_work_on(state, uuid, *old)
            change(state)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Callable[[State], None]]:
        """Hold the lab still, on the newest state, and take a changed one in if it is possible."""
        with self._lock:
            self._reload()
            if self._problem is not None:
                raise ValueError(self._problem)
            yield self._take

    def _take(self, state: State) -> None:
        text = simulated_state.dump(state, self._lab)
        # Read back what was spelled: what a file may not say, a method may not do either.
        checked = simulated_state.parse(text, self._lab)
        if self._path is not None:
            content = text.encode()
            _replace_file(self._path, content)
            self._read = content
        self._state = checked

    def _reload(self) -> None:
        """Take the state file in if its content changed; on a bad one keep the last good state.

        By content, not by time: two changes within one tick of the file system's clock are two.
        """
        if self._path is None:
            return
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            content = b"{}"
        except OSError as error:
            self._read = None
            self._problem = f"The state file {self._path.name} cannot be read: {error.strerror}."
            return
        if content == self._read:
            return
        self._read = content
        try:
            self._state = simulated_state.parse(content.decode(), self._lab)
            self._problem = None
        except ValueError as error:
            self._problem = f"The state file {self._path.name} is not usable: {error}."


def _replace_file(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old or the new one, never a part."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    beside.write_bytes(content)
    beside.replace(path)
