"""A simulated lab's fixed part: which GPUs a host has, their UUIDs, and what may be set on them."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpuspawner.domain.devices import DeviceUUID, HostId
from gpuspawner.gpus import mig
from gpuspawner.gpus.mig import InstanceProfile
from gpuspawner.gpus.presets import Board, PresetDevice, preset

# 513 reads as "SIM": nobody takes such a UUID for a real one. The rest is a UUID of version 5.
_MARK = "51300000"
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "urn:gpuspawner:simulated")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """What can change on a simulated GPU.

    Attributes:
        xid: the last Xid that the driver reported, application errors included.
        layout: instances in the order of creation, each as ``2g.10gb`` or ``2g.10gb:4``.
        generation: grows with each change of partition or layout, so that an instance's UUID
            never comes back.
    """

    lost: bool = False
    xid: int | None = None
    partitioned: bool = False
    layout: tuple[str, ...] = ()
    generation: int = 0


@dataclass(frozen=True, slots=True)
class SimulatedInstance:
    """One instance of a simulated GPU, as its device's state makes it."""

    uuid: DeviceUUID
    profile: InstanceProfile


@dataclass(frozen=True, slots=True)
class SimulatedDevice:
    """One GPU of a lab; its UUID and its unchanged state follow from host, lab and index."""

    uuid: DeviceUUID
    index: int
    board: Board
    initial: DeviceState

    def instances(self, state: DeviceState) -> tuple[SimulatedInstance, ...]:
        """Return the instances of a state, by their place in memory.

        Raises:
            ValueError: the board has no such profile, or they do not fit together.
        """
        if not self.board.profiles and (state.partitioned or state.layout):
            raise ValueError(f"{self.board.model} ({self.uuid}) cannot be partitioned")
        if not state.partitioned:
            if state.layout:
                raise ValueError(f"{self.uuid} has a layout but is not partitioned")
            return ()
        try:
            wanted = [mig.parse(text, self.board.profiles) for text in state.layout]
            placed = sorted(zip(mig.place(wanted), wanted, strict=True), key=lambda item: item[0])
        except ValueError as error:
            raise ValueError(f"{self.board.model} ({self.uuid}): {error}") from None
        return tuple(
            SimulatedInstance(
                _simulated_uuid("MIG", f"{self.uuid}/{state.generation}/{start}"), item.profile
            )
            for start, item in placed
        )

    def with_layout(self, state: DeviceState, layout: tuple[str, ...] | None) -> DeviceState:
        """Return a state with other instances, or without partitions when ``layout`` is None.

        Raises:
            ValueError: they do not fit.
        """
        changed = replace(
            state,
            partitioned=layout is not None,
            layout=layout or (),
            generation=state.generation + 1,
        )
        self.instances(changed)
        return changed


@dataclass(frozen=True, slots=True)
class Lab:
    """The GPUs of one simulated host."""

    host_id: HostId
    preset_name: str
    devices: Mapping[DeviceUUID, SimulatedDevice] = field(init=False)

    def __post_init__(self) -> None:
        devices = [
            self._device(index, description)
            for index, description in enumerate(preset(self.preset_name))
        ]
        object.__setattr__(self, "devices", {device.uuid: device for device in devices})

    def _device(self, index: int, description: PresetDevice) -> SimulatedDevice:
        layout = description.layout
        return SimulatedDevice(
            _simulated_uuid("GPU", f"{self.host_id}/{self.preset_name}/{index}"),
            index,
            description.board,
            DeviceState(partitioned=layout is not None, layout=layout or ()),
        )

    def device(self, name: str) -> SimulatedDevice:
        """Return a GPU by UUID.

        Raises:
            ValueError: this lab has none of that UUID.
        """
        found = self.devices.get(DeviceUUID(name))
        if found is None:
            raise ValueError(f"there is no GPU {name!r} in the simulated lab {self.preset_name!r}")
        return found


def _simulated_uuid(kind: str, name: str) -> DeviceUUID:
    return DeviceUUID(f"{kind}-{_MARK}{str(uuid.uuid5(_NAMESPACE, name))[8:]}")
