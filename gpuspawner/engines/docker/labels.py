"""Our labels on containers and volumes, and names that never collide."""

import hashlib
import re
from typing import Final

from gpuspawner.domain.leases import Lease, ServerKey

HUB: Final = "org.gpuspawner.hub"
USER: Final = "org.gpuspawner.user"
SERVER: Final = "org.gpuspawner.server"
LEASE: Final = "org.gpuspawner.lease"
FENCE: Final = "org.gpuspawner.fence"
SLICES: Final = "org.gpuspawner.slices"

_PLAIN: Final = re.compile(r"[a-z0-9]{1,32}")
_OTHER: Final = re.compile(r"[^a-z0-9]+")


def labels_of(key: ServerKey, lease: Lease | None) -> dict[str, str]:
    """Return the labels of a server's container. The names stand there as the hub spells them."""
    labels = {HUB: key.hub_id, USER: key.user, SERVER: key.server}
    if lease is not None:
        labels[LEASE] = str(lease.lease_id)
        labels[FENCE] = str(lease.fence)
        labels[SLICES] = ",".join(item.slice_id for item in lease.slices)
    return labels


def is_of(labels: dict[str, str] | None, key: ServerKey) -> bool:
    """Whether a container with these labels is this server's."""
    labels = labels or {}
    return (labels.get(HUB), labels.get(USER), labels.get(SERVER)) == (
        key.hub_id,
        key.user,
        key.server,
    )


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
