"""Names for an engine's objects and folders that never collide."""

import hashlib
import re
from typing import Final

_PLAIN: Final = re.compile(r"[a-z0-9]{1,32}")
_OTHER: Final = re.compile(r"[^a-z0-9]+")


def safe_part(name: str) -> str:
    """Return a part of an object's name that is legal, readable, and different for each name.

    A plain name stands as it is and has no hyphen; any other gets a hyphen and a digest of its
    exact spelling, so the two kinds never meet (dockerspawner PR #386; hub facts H15). Long names
    are cut, since a volume's name is a folder's name.
    """
    if _PLAIN.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    readable = _OTHER.sub("-", name.lower()).strip("-")[:24].strip("-")
    return f"{readable or 'x'}-{digest}"
