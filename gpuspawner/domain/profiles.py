"""Profiles: what a person can choose. Written by the site, validated once when it is read."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from gpuspawner.domain.devices import Mode
from gpuspawner.domain.units import parse_memory_mib

_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One choice of the spawn form: a mode and a size, for whom, with which images.

    ``mode`` is None for a server without GPU. ``memory_mib`` is the share's size for a share and
    the least memory a device must have otherwise. ``count`` devices are granted all or none, on
    one host and of one model. ``groups`` are the hub groups that may use it (empty: everybody);
    a share names exactly one, since only its members sit on one device. ``hour_weight`` maps a
    part of a model's name to GPU-hours per hour (for budgets).
    """

    name: str
    title: str
    description: str = ""
    mode: Mode | None = None
    count: int = 1
    memory_mib: int | None = None
    compute_percent: int | None = None
    instance: str | None = None
    models: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    default: bool = False
    hour_weight: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def share_group(self) -> str | None:
        """The group whose members may sit on one device with this profile; None if none share."""
        return self.groups[0] if self.mode is not None and self.mode.is_share else None

    def is_allowed_for(self, groups: frozenset[str]) -> bool:
        """Whether a member of these hub groups may use this profile."""
        return not self.groups or not groups.isdisjoint(self.groups)

    def fits_model(self, model: str) -> bool:
        """Whether a device of this model is wanted."""
        return not self.models or any(part.lower() in model.lower() for part in self.models)


CPU_ONLY: Final = Profile(name="cpu", title="CPU only", description="No GPU.", default=True)


class ProfileError(ValueError):
    """A profile in the site's configuration is wrong: where, what was expected, what came."""


def parse_profiles(raw: Sequence[Mapping[str, Any]]) -> tuple[Profile, ...]:
    """Read the site's list of profiles. An empty list gives the one profile without GPU.

    Raises:
        ProfileError: an unknown key, a wrong type or value, a name used twice, two defaults.
    """
    profiles = tuple(_parse_profile(entry, f"profiles[{at}]") for at, entry in enumerate(raw))
    names = [profile.name for profile in profiles]
    for name in names:
        if names.count(name) > 1:
            raise ProfileError(f"profiles: the name {name!r} is used {names.count(name)} times")
    if sum(profile.default for profile in profiles) > 1:
        raise ProfileError("profiles: more than one profile is marked default")
    return profiles or (CPU_ONLY,)


def default_profile(profiles: Sequence[Profile]) -> Profile:
    """Return the profile that an empty choice means: the marked one, else the smallest grant."""
    for profile in profiles:
        if profile.default:
            return profile
    return next((profile for profile in profiles if profile.mode is None), (*profiles, CPU_ONLY)[0])


def profile_to_dict(profile: Profile) -> dict[str, Any]:
    """Write a profile as plain data; `profile_from_dict` reads it back."""
    data = {item.name: getattr(profile, item.name) for item in fields(profile)}
    data["mode"] = None if profile.mode is None else str(profile.mode)
    data["hour_weight"] = dict(profile.hour_weight)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in data.items()}


def profile_from_dict(data: Mapping[str, Any]) -> Profile:
    """Read what `profile_to_dict` wrote."""
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in data.items()
    }
    values["mode"] = None if data["mode"] is None else Mode(data["mode"])
    return Profile(**values)


def _parse_profile(entry: Mapping[str, Any], where: str) -> Profile:
    if not isinstance(entry, Mapping):
        raise ProfileError(f"{where}: expected a mapping, got {entry!r}")
    known = {item.name for item in fields(Profile)} - {"memory_mib"} | {"memory"}
    for key in entry:
        if key not in known:
            raise ProfileError(
                f"{where}: unknown key {key!r}; known are {', '.join(sorted(known))}"
            )
    name = entry.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ProfileError(
            f"{where}.name: expected 1 to 40 of a-z, 0-9 and '-' inside, got {name!r}"
        )
    where = f"profile {name!r}"
    profile = Profile(
        name=name,
        title=_text(entry, "title", where, name) or name,
        description=_text(entry, "description", where, ""),
        mode=_mode(entry.get("mode"), where),
        count=_whole_number(entry, "count", where, 1, 64) or 1,
        memory_mib=_memory(entry.get("memory"), where),
        compute_percent=_whole_number(entry, "compute_percent", where, 1, 100),
        instance=_text(entry, "instance", where, "") or None,
        models=_texts(entry, "models", where),
        images=_texts(entry, "images", where),
        groups=_texts(entry, "groups", where),
        default=_flag(entry, "default", where),
        hour_weight=_weights(entry.get("hour_weight", {}), where),
    )
    _check_sense(profile, where)
    return profile


def _check_sense(profile: Profile, where: str) -> None:
    if profile.mode is None:
        given = {"memory": profile.memory_mib, "compute_percent": profile.compute_percent,
                 "instance": profile.instance}  # fmt: skip
        for key, value in given.items():
            if value is not None:
                raise ProfileError(f"{where}: has no mode (CPU only), so {key} has no meaning")
        if profile.count != 1 or profile.models:
            raise ProfileError(f"{where}: has no mode (CPU only), so count and models have none")
    elif profile.mode is Mode.MPS:
        raise ProfileError(f"{where}: mode 'mps' is not available yet; use 'time-sliced' or 'mig'")
    elif profile.mode.is_share:
        if profile.memory_mib is None:
            raise ProfileError(f"{where}: a share needs its memory, such as memory: '5GiB'")
        if len(profile.groups) != 1:
            raise ProfileError(
                f"{where}: a share needs exactly one hub group in 'groups', whose members share "
                f"devices among themselves; got {len(profile.groups)}"
            )
    elif profile.mode is Mode.INSTANCE and profile.instance is None and profile.memory_mib is None:
        raise ProfileError(f"{where}: mode 'mig' needs instance: '2g.10gb' or a least memory")
    if profile.count > 1 and profile.mode is not Mode.WHOLE:
        raise ProfileError(f"{where}: count above 1 is for mode 'whole' only")
    if profile.instance is not None and profile.mode is not Mode.INSTANCE:
        raise ProfileError(f"{where}: 'instance' is for mode 'mig' only")


def _mode(value: Any, where: str) -> Mode | None:
    if value is None:
        return None
    try:
        return Mode(value)
    except ValueError:
        modes = ", ".join(repr(str(mode)) for mode in Mode)
        raise ProfileError(
            f"{where}.mode: expected one of {modes} or none, got {value!r}"
        ) from None


def _memory(value: Any, where: str) -> int | None:
    if value is None:
        return None
    try:
        return parse_memory_mib(value)
    except ValueError as error:
        raise ProfileError(f"{where}.memory: {error}") from None


def _text(entry: Mapping[str, Any], key: str, where: str, default: str) -> str:
    value = entry.get(key, default)
    if value is None:
        return default
    if not isinstance(value, str) or len(value) > 500:
        raise ProfileError(
            f"{where}.{key}: expected a text of at most 500 characters, got {value!r}"
        )
    return value


def _texts(entry: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = entry.get(key, ())
    if not isinstance(value, (list, tuple)) or not all(
        isinstance(item, str) and item for item in value
    ):
        raise ProfileError(f"{where}.{key}: expected a list of texts, got {value!r}")
    return tuple(value)


def _whole_number(
    entry: Mapping[str, Any], key: str, where: str, low: int, high: int
) -> int | None:
    value = entry.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ProfileError(f"{where}.{key}: expected a whole number {low} to {high}, got {value!r}")
    return value


def _flag(entry: Mapping[str, Any], key: str, where: str) -> bool:
    value = entry.get(key, False)
    if not isinstance(value, bool):
        raise ProfileError(f"{where}.{key}: expected true or false, got {value!r}")
    return value


def _weights(value: Any, where: str) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise ProfileError(f"{where}.hour_weight: expected a mapping of model to number")
    weights = {}
    for model, weight in value.items():
        number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
        if not isinstance(model, str) or not number or not 0 < weight <= 1000:
            raise ProfileError(
                f"{where}.hour_weight: expected a number above 0 and at most 1000 for "
                f"{model!r}, got {weight!r}"
            )
        weights[model] = float(weight)
    return weights
