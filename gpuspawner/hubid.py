"""The hub's short id: hub and service read it from one place."""

import contextlib
import os
import secrets
import string
from pathlib import Path
from typing import Final

HUB_ID_VARIABLE: Final = "GPUSPAWNER_HUB_ID"
HUB_ID_FILE_VARIABLE: Final = "GPUSPAWNER_HUB_ID_FILE"
DEFAULT_FILE: Final = "gpuspawner_hub_id"

_LETTERS: Final = string.ascii_lowercase + string.digits


def hub_id_from_environment() -> str:
    """Return the hub's id as the environment names it: itself, or the file that keeps it.

    Raises:
        ValueError: the file holds something else.
        OSError: the file cannot be read or made.
    """
    given = os.environ.get(HUB_ID_VARIABLE, "")
    return given or read_hub_id(Path(os.environ.get(HUB_ID_FILE_VARIABLE) or DEFAULT_FILE))


def hub_ids_in_sight() -> frozenset[str]:
    """Return the id of the hub that the environment names, if it has one already.

    For the agent, which makes none: books that are new do not name their hub yet.
    """
    try:
        found = os.environ.get(HUB_ID_VARIABLE, "") or _read(
            Path(os.environ.get(HUB_ID_FILE_VARIABLE) or DEFAULT_FILE)
        )
    except OSError:
        return frozenset()
    return frozenset({found}) if is_hub_id(found) else frozenset()


def read_hub_id(file: Path) -> str:
    """Return the hub's short id, kept in a file beside the hub's cookie secret.

    It tells this hub's containers and volumes from another hub's on the same engine.

    Raises:
        ValueError: the file holds something else.
        OSError: the file cannot be made.
    """
    try:
        hub_id = _read(file)
    except FileNotFoundError:
        _make(file)
        hub_id = _read(file)
    if not is_hub_id(hub_id):
        raise ValueError(
            f"{file}: expected a hub id of 1 to 16 characters a-z and 0-9, got {hub_id!r}; "
            "remove the file for a new id, or set hub_id"
        )
    return hub_id


def is_hub_id(text: str) -> bool:
    """Whether a text can be a hub's id: 1 to 16 characters a-z and 0-9."""
    return bool(text) and set(text) <= set(_LETTERS) and len(text) <= 16


def _read(file: Path) -> str:
    return file.read_text(errors="replace").strip()


def _make(file: Path) -> None:
    """Make the file with an id in it, unless another process of this hub is first.

    It appears with its content: nobody ever reads an empty one.
    """
    hub_id = "".join(secrets.choice(_LETTERS) for _ in range(8))
    draft = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
    draft.write_text(hub_id + "\n")
    try:
        with contextlib.suppress(FileExistsError):
            file.hardlink_to(draft)
    finally:
        draft.unlink()
