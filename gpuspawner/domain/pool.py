"""The pool: which devices a site hands out and how, joined with what is there and who holds it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from gpuspawner.domain.devices import (
    Device,
    HostInventory,
    Instance,
    Mode,
    Trouble,
    Unavailable,
)
from gpuspawner.domain.profiles import (
    Profile,
    parse_profiles,
    profile_from_dict,
    profile_to_dict,
)
from gpuspawner.domain.slices import Hold
from gpuspawner.domain.units import parse_memory_mib

DEFAULT_HEADROOM_MIB: Final = 512
# An agent looks every few seconds; one that was silent for this long watches nobody's share.
FRESH_FOR: Final = timedelta(seconds=60)


class PlacementPolicy(StrEnum):
    """Which of the fitting slices is taken."""

    LEAST_LOADED = "least-loaded"
    BINPACK = "binpack"
    SPREAD = "spread"


class PoolError(ValueError):
    """The pool's description in the site's configuration is wrong: where, and what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRule:
    """How the devices that ``select`` names are handed out.

    ``select`` is a UUID, a part of a model's name, ``#<index>``, or ``*``; the first rule that
    fits a device counts. ``headroom_mib`` is never handed out as a share.
    """

    select: str = "*"
    modes: frozenset[Mode] = frozenset({Mode.WHOLE, Mode.INSTANCE})
    headroom_mib: int = DEFAULT_HEADROOM_MIB

    def covers(self, device: Device) -> bool:
        """Whether this rule is about the device."""
        if self.select == "*" or self.select == device.uuid:
            return True
        if self.select.startswith("#"):
            return self.select[1:] == str(device.index)
        return self.select.lower() in device.model.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a site decides, published by the hub into the ledger for everybody to read."""

    profiles: tuple[Profile, ...] = ()
    rules: tuple[DeviceRule, ...] = ()
    placement: PlacementPolicy = PlacementPolicy.LEAST_LOADED

    def rule_for(self, device: Device) -> DeviceRule:
        """Return the first rule that covers the device, else the cautious default."""
        return next((rule for rule in self.rules if rule.covers(device)), DeviceRule())


def parse_policy(
    profiles: Sequence[Mapping[str, Any]],
    devices: Sequence[Mapping[str, Any]],
    placement: str = PlacementPolicy.LEAST_LOADED,
) -> Policy:
    """Read a site's configuration.

    Raises:
        ProfileError: a profile is wrong.
        PoolError: a device rule or the placement policy is wrong.
    """
    try:
        chosen = PlacementPolicy(placement)
    except ValueError:
        known = ", ".join(PlacementPolicy)
        raise PoolError(f"placement: expected one of {known}, got {placement!r}") from None
    rules = tuple(_parse_rule(entry, f"devices[{at}]") for at, entry in enumerate(devices))
    return Policy(profiles=parse_profiles(profiles), rules=rules, placement=chosen)


def _parse_rule(entry: Mapping[str, Any], where: str) -> DeviceRule:
    if not isinstance(entry, Mapping):
        raise PoolError(f"{where}: expected a mapping, got {entry!r}")
    known = ("select", "modes", "headroom")
    for key in entry:
        if key not in known:
            raise PoolError(f"{where}: unknown key {key!r}; known are {', '.join(known)}")
    select = entry.get("select", "*")
    if not isinstance(select, str) or not select:
        raise PoolError(
            f"{where}.select: expected a UUID, a model, '#index' or '*', got {select!r}"
        )
    known_modes = [str(mode) for mode in Mode if mode is not Mode.MPS]
    modes = entry.get("modes", [str(Mode.WHOLE), str(Mode.INSTANCE)])
    if not isinstance(modes, (list, tuple)) or any(mode not in known_modes for mode in modes):
        raise PoolError(f"{where}.modes: expected a list of whole, mig, time-sliced, got {modes!r}")
    headroom = entry.get("headroom", f"{DEFAULT_HEADROOM_MIB}MiB")
    try:
        headroom_mib = parse_memory_mib(headroom)
    except ValueError as error:
        raise PoolError(f"{where}.headroom: {error}") from None
    return DeviceRule(select=select, modes=frozenset(map(Mode, modes)), headroom_mib=headroom_mib)


def policy_to_dict(policy: Policy) -> dict[str, Any]:
    """Write a policy as plain data for the ledger."""
    return {
        "profiles": [profile_to_dict(profile) for profile in policy.profiles],
        "rules": [
            {"select": rule.select, "modes": sorted(rule.modes), "headroom_mib": rule.headroom_mib}
            for rule in policy.rules
        ],
        "placement": str(policy.placement),
    }


def policy_from_dict(data: Mapping[str, Any]) -> Policy:
    """Read what `policy_to_dict` wrote."""
    return Policy(
        profiles=tuple(profile_from_dict(item) for item in data["profiles"]),
        rules=tuple(
            DeviceRule(
                select=item["select"],
                modes=frozenset(map(Mode, item["modes"])),
                headroom_mib=item["headroom_mib"],
            )
            for item in data["rules"]
        ),
        placement=PlacementPolicy(data["placement"]),
    )


@dataclass(slots=True, kw_only=True, eq=False)
class PooledDevice:
    """One device in a `Pool`: what may be handed out of it and what is held now."""

    device: Device
    rule: DeviceRule
    simulated: bool
    observed_at: datetime
    fresh: bool
    unavailable: Unavailable | None
    unavailable_units: Mapping[str, Unavailable] = field(default_factory=dict)
    holds: dict[str, Hold] = field(default_factory=dict)
    promised_mib: int = 0

    @property
    def capacity_mib(self) -> int | None:
        """What its shares may add up to; None when the device's memory is unknown."""
        if self.device.memory_mib is None:
            return None
        return max(self.device.memory_mib - self.rule.headroom_mib, 0)

    @property
    def held_mode(self) -> Mode | None:
        """The mode that present leases keep it in; None when it is empty."""
        return next((hold.slice.mode for hold in self.holds.values()), None)

    @property
    def held_group(self) -> str | None:
        """The group that shares it now."""
        return next((hold.group for hold in self.holds.values()), None)

    def may_take(self, mode: Mode) -> bool:
        """Whether the site's rule and the hardware's partitioning allow this mode at all.

        A device that is not known to be unpartitioned is never handed out as itself.
        """
        if mode not in self.rule.modes:
            return False
        return self.device.partitioned is (mode is Mode.INSTANCE)

    def add(self, hold: Hold) -> None:
        """Enter a hold into this view."""
        self.holds[hold.slice.unit] = hold
        self.promised_mib += hold.slice.memory_mib or 0


class Pool:
    """All devices of a site as one transaction read them. Built once per settle."""

    def __init__(
        self,
        policy: Policy,
        hosts: Iterable[HostInventory],
        cordons: Mapping[str, str] | None = None,
        holds: Iterable[Hold] = (),
        *,
        now: datetime,
    ) -> None:
        """Join policy, inventories, cordons (UUID to note) and the living holds."""
        self.policy = policy
        self.devices: dict[str, PooledDevice] = {}
        cordons = cordons or {}
        for host in hosts:
            for device in host.devices:
                self.devices[device.uuid] = _pooled(policy, host, device, cordons, now)
        for hold in holds:
            self.add(hold)
        self._by_mode: dict[Mode, list[PooledDevice]] = {
            mode: [item for item in self.devices.values() if item.may_take(mode)] for mode in Mode
        }
        self._instances: dict[str, list[tuple[PooledDevice, Instance]]] = {}
        for item in self._by_mode[Mode.INSTANCE]:
            for instance in item.device.instances:
                self._instances.setdefault(instance.profile, []).append((item, instance))

    def add(self, hold: Hold) -> None:
        """Enter a hold. One on a device that is not there any more takes no room from others."""
        item = self.devices.get(hold.slice.device_uuid)
        if item is not None:
            item.add(hold)

    def for_mode(self, mode: Mode) -> Sequence[PooledDevice]:
        """Return the devices that may ever be handed out in this mode."""
        return self._by_mode[mode]

    def instances(self, profile: str | None) -> Iterable[tuple[PooledDevice, Instance]]:
        """Return the instances of one driver's profile, or of all."""
        if profile is not None:
            return self._instances.get(profile, ())
        return (pair for pairs in self._instances.values() for pair in pairs)


def _pooled(
    policy: Policy,
    host: HostInventory,
    device: Device,
    cordons: Mapping[str, str],
    now: datetime,
) -> PooledDevice:
    units: dict[str, Unavailable] = {
        instance.uuid: _cordoned(cordons[instance.uuid])
        for instance in device.instances
        if instance.uuid in cordons
    }
    unavailable = device.unavailable
    if unavailable is None and device.uuid in cordons:
        unavailable = _cordoned(cordons[device.uuid])
    return PooledDevice(
        device=device,
        rule=policy.rule_for(device),
        simulated=host.simulated,
        observed_at=host.observed_at,
        fresh=now - host.observed_at <= FRESH_FOR,
        unavailable=unavailable,
        unavailable_units=units,
    )


def _cordoned(note: str) -> Unavailable:
    return Unavailable(trouble=Trouble.CORDONED, detail=note, cleared_by="gpuspawner uncordon")


# Every field of a rule is written by `policy_to_dict`: a new one without a line there fails here.
assert {item.name for item in fields(DeviceRule)} == {"select", "modes", "headroom_mib"}
