"""Choices: what a person asks for in a spawn form or a REST body, judged by one validator.

Form, REST, saved and absent options all come here, so none of them is a way around the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpuspawner.domain.profiles import Profile, default_profile
from gpuspawner.domain.reasons import Code, RefusedError, reason

KEYS: Final = ("profile", "image")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A choice that the site allows to this person. ``image`` None is the spawner's own."""

    profile: Profile
    image: str | None


def judge(
    options: Any,
    profiles: Sequence[Profile],
    groups: frozenset[str],
    images: Mapping[str, str] | None = None,
) -> Choice:
    """Turn options into a choice, or refuse them naming the key.

    Args:
        options: what came; None and an empty mapping mean the default profile.
        profiles: the site's profiles, in its order.
        groups: the hub groups of the person.
        images: names that may be asked for to image references, where the profile names none of
            its own; None when the person may not choose an image.

    Raises:
        RefusedError: with the reason; nothing was done.
    """
    options = {} if options is None else options
    if not isinstance(options, Mapping):
        raise RefusedError(
            reason(Code.OPTION_TYPE, key="options", expected="a mapping", got=_kind(options))
        )
    for key in options:
        if key not in KEYS:
            raise RefusedError(reason(Code.OPTION_UNKNOWN, key=_short(key), known=list(KEYS)))
    for key in KEYS:
        if key in options and not isinstance(options[key], str):
            got = _kind(options[key])
            raise RefusedError(reason(Code.OPTION_TYPE, key=key, expected="a text", got=got))
    profile = _profile(options.get("profile"), profiles, groups)
    return Choice(profile=profile, image=_image(options.get("image"), profile, images or {}))


def allowed_profiles(profiles: Sequence[Profile], groups: frozenset[str]) -> tuple[Profile, ...]:
    """Return the profiles that a member of these groups may use, in the site's order."""
    return tuple(profile for profile in profiles if profile.is_allowed_for(groups))


def _profile(name: str | None, profiles: Sequence[Profile], groups: frozenset[str]) -> Profile:
    allowed = allowed_profiles(profiles, groups)
    titles = [profile.title for profile in allowed]
    if not name:
        chosen = default_profile(allowed or profiles)
    else:
        found = next((profile for profile in profiles if profile.name == name), None)
        if found is None:
            known = [profile.name for profile in allowed]
            raise RefusedError(
                reason(Code.PROFILE_UNKNOWN, key="profile", got=_short(name), known=known)
            )
        chosen = found
    if not chosen.is_allowed_for(groups):
        raise RefusedError(
            reason(
                Code.PROFILE_NOT_ALLOWED,
                profile=chosen.title,
                groups=list(chosen.groups),
                alternatives=titles,
            )
        )
    return chosen


def _image(name: str | None, profile: Profile, images: Mapping[str, str]) -> str | None:
    if profile.images:
        if not name:
            return profile.images[0]
        if name in profile.images:
            return name
        raise RefusedError(
            reason(Code.IMAGE_UNKNOWN, key="image", got=_short(name), known=list(profile.images))
        )
    if not name:
        return None
    if name in images:
        return images[name]
    raise RefusedError(
        reason(Code.IMAGE_UNKNOWN, key="image", got=_short(name), known=list(images))
    )


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:79] + "…"


def _kind(value: object) -> str:
    names = {dict: "a mapping", list: "a list", bool: "true or false", int: "a number",
             float: "a number", str: "a text", type(None): "nothing"}  # fmt: skip
    return names.get(type(value), type(value).__name__)
