"""The policy: which devices a site hands out and how, as its configuration says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final

from gpuspawner.domain.devices import Device, Mode
from gpuspawner.domain.profiles import (
    Profile,
    parse_profiles,
    profile_from_dict,
    profile_to_dict,
)
from gpuspawner.domain.units import parse_memory_mib

DEFAULT_HEADROOM_MIB: Final = 512


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


# Every field of a rule is written by `policy_to_dict`: a new one without a line there fails here.
assert {item.name for item in fields(DeviceRule)} == {"select", "modes", "headroom_mib"}
