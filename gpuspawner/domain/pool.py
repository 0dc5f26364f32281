"""The pool: what a site hands out, joined with what is there and who holds it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from gpuspawner.domain.devices import (
    Device,
    HostInventory,
    Instance,
    Mode,
    Trouble,
    Unavailable,
)
from gpuspawner.domain.policy import DeviceRule, Policy
from gpuspawner.domain.slices import Hold, HoldKey

# An agent looks every few seconds; one that was silent for this long watches nobody's share.
FRESH_FOR: Final = timedelta(seconds=60)


@dataclass(slots=True, kw_only=True, eq=False)
class PooledDevice:
    """One device in a `Pool`: what may be handed out of it and what is held now.

    ``held_mode`` and ``held_group`` are what present leases keep it in and the group that shares
    it; ``room_mib`` is what its shares may still take; ``rank`` is placement's, until a hold comes.
    """

    device: Device
    rule: DeviceRule
    simulated: bool
    observed_at: datetime
    fresh: bool
    unavailable: Unavailable | None
    unavailable_units: Mapping[str, Unavailable] = field(default_factory=dict)
    holds: dict[str, Hold] = field(default_factory=dict)
    promised_mib: int = 0
    room_mib: int = field(init=False)
    held_mode: Mode | None = None
    held_group: str | None = None
    rank: tuple[int | str, ...] | None = None

    def __post_init__(self) -> None:
        self.room_mib = self.capacity_mib or 0

    @property
    def capacity_mib(self) -> int | None:
        """What its shares may add up to; None when the device's memory is unknown."""
        if self.device.memory_mib is None:
            return None
        return max(self.device.memory_mib - self.rule.headroom_mib, 0)

    @property
    def is_free(self) -> bool:
        """Whether nobody holds any of it and nothing stands against it."""
        return not self.holds and self.unavailable is None

    def is_free_instance(self, instance: Instance) -> bool:
        """Whether nobody holds this partition, or the device as anything else."""
        return (
            self.unavailable is None
            and instance.uuid not in self.holds
            and instance.uuid not in self.unavailable_units
            and self.held_mode in (None, Mode.INSTANCE)
        )

    def may_join(self, mode: Mode, group: str | None) -> bool:
        """Whether a share for this group may sit beside what is held now."""
        return not self.holds or (self.held_mode is mode and self.held_group == group)

    @property
    def caps_are_held(self) -> bool:
        """Whether something keeps a share of it to its memory, and somebody watches.

        Nothing does on real devices yet, so shares are handed out on simulated ones only.
        """
        return self.simulated and self.fresh

    def may_take(self, mode: Mode) -> bool:
        """Whether the site's rule and the hardware's partitioning allow this mode at all.

        A device that is not known to be unpartitioned is never handed out as itself.
        """
        if mode not in self.rule.modes:
            return False
        return self.device.partitioned is (mode is Mode.INSTANCE)

    def add(self, hold: Hold) -> None:
        """Enter a hold into this view."""
        if not self.holds:
            self.held_mode, self.held_group = hold.slice.mode, hold.group
        self.holds[hold.slice.unit] = hold
        self.promised_mib += hold.slice.memory_mib or 0
        self.room_mib = max((self.capacity_mib or 0) - self.promised_mib, 0)
        self.rank = None

    def remove(self, hold: Hold) -> None:
        """Take a hold out of this view."""
        del self.holds[hold.slice.unit]
        self.promised_mib -= hold.slice.memory_mib or 0
        self.room_mib = max((self.capacity_mib or 0) - self.promised_mib, 0)
        self.rank = None
        first = next(iter(self.holds.values()), None)
        self.held_mode = None if first is None else first.slice.mode
        self.held_group = None if first is None else first.group


class Pool:
    """All devices of a site as one transaction read them.

    ``entered`` are the holds that it knows, by device, unit and lease: what is needed to bring it
    up to a later moment instead of building it anew.
    """

    def __init__(
        self,
        policy: Policy,
        hosts: Iterable[HostInventory],
        cordons: Mapping[str, str] | None = None,
        holds: Iterable[Hold] = (),
        *,
        now: datetime,
        foreign: Mapping[tuple[str, str], str] | None = None,
    ) -> None:
        """Join policy, inventories, cordons (UUID to note) and the living holds.

        ``foreign`` names the containers that have a device without a lease, by host and UUID; the
        UUID ``*`` stands for all of a host's. Whose memory is there the devices say themselves.
        """
        self.policy = policy
        hosts = sorted(hosts, key=lambda item: (item.observed_at, item.host_id))
        self.is_observed = bool(hosts)  # by any agent, ever
        self.devices: dict[str, PooledDevice] = {}
        self.entered: dict[HoldKey, Hold] = {}
        # A device that two hosts report (moved, or its host renamed) is where it was seen last.
        for host in hosts:
            for device in host.devices:
                self.devices[device.uuid] = _pooled(
                    policy, host, device, cordons or {}, foreign or {}, now
                )
        self._by_mode: dict[Mode, list[PooledDevice]] = {
            mode: [item for item in self.devices.values() if item.may_take(mode)] for mode in Mode
        }
        self._free = {item.device.uuid: item for item in self._by_mode[Mode.WHOLE] if item.is_free}
        self._instances: dict[str, dict[str, tuple[PooledDevice, Instance]]] = {}
        self._free_instances: dict[str, dict[str, tuple[PooledDevice, Instance]]] = {}
        for item in self._by_mode[Mode.INSTANCE]:
            for each in item.device.instances:
                self._instances.setdefault(each.profile, {})[each.uuid] = item, each
            self._note_free(item)
        for hold in holds:
            self.add(hold)

    def add(self, hold: Hold) -> None:
        """Enter a hold. One on a device that is not there any more takes no room from others."""
        self.entered[hold.key] = hold
        item = self.devices.get(hold.slice.device_uuid)
        if item is not None:
            item.add(hold)
            self._note_free(item)

    def remove(self, hold: Hold) -> None:
        """Take a hold out that was entered."""
        del self.entered[hold.key]
        item = self.devices.get(hold.slice.device_uuid)
        if item is not None:
            item.remove(hold)
            self._note_free(item)

    def move_to(self, now: datetime) -> None:
        """Judge by a later time which observations are fresh."""
        for item in self.devices.values():
            item.fresh = now - item.observed_at <= FRESH_FOR

    def _note_free(self, item: PooledDevice) -> None:
        """Keep the tables of what is free up to a device's holds."""
        uuid = item.device.uuid
        if item.may_take(Mode.WHOLE) and item.is_free:
            self._free[uuid] = item
        else:
            self._free.pop(uuid, None)
        if item.may_take(Mode.INSTANCE):
            for each in item.device.instances:
                free = self._free_instances.setdefault(each.profile, {})
                if item.is_free_instance(each):
                    free[each.uuid] = item, each
                else:
                    free.pop(each.uuid, None)

    def for_mode(self, mode: Mode) -> Sequence[PooledDevice]:
        """Return the devices that may ever be handed out in this mode."""
        return self._by_mode[mode]

    def free_whole(self) -> Iterable[PooledDevice]:
        """Return the devices that may be handed out whole now."""
        return self._free.values()

    def instances(
        self, profile: str | None, *, free: bool = False
    ) -> Iterable[tuple[PooledDevice, Instance]]:
        """Return the instances of one driver's profile, or of all; with ``free`` those free now."""
        table = self._free_instances if free else self._instances
        if profile is not None:
            return table.get(profile, {}).values()
        return (pair for pairs in table.values() for pair in pairs.values())


def _pooled(
    policy: Policy,
    host: HostInventory,
    device: Device,
    cordons: Mapping[str, str],
    foreign: Mapping[tuple[str, str], str],
    now: datetime,
) -> PooledDevice:
    units: dict[str, Unavailable] = {}
    for instance in device.instances:
        if instance.uuid in cordons:
            units[instance.uuid] = _cordoned(cordons[instance.uuid])
        elif instance.foreign is not None:
            units[instance.uuid] = _foreign(instance.foreign)
    unavailable = device.unavailable
    if unavailable is None and device.uuid in cordons:
        unavailable = _cordoned(cordons[device.uuid])
    who = foreign.get((host.host_id, device.uuid)) or foreign.get((host.host_id, "*"))
    who = who or device.foreign
    if unavailable is None and who is not None:
        unavailable = _foreign(who)
    return PooledDevice(
        device=device,
        rule=policy.rule_for(device),
        simulated=host.simulated,
        observed_at=host.observed_at,
        fresh=now - host.observed_at <= FRESH_FOR,
        unavailable=unavailable,
        unavailable_units=units,
    )


def _foreign(who: str) -> Unavailable:
    return Unavailable(trouble=Trouble.FOREIGN, detail=who, cleared_by="stopping what uses it")


def _cordoned(note: str) -> Unavailable:
    return Unavailable(trouble=Trouble.CORDONED, detail=note, cleared_by="gpuspawner uncordon")
