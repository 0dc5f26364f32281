"""Our labels on containers."""

import json
import uuid
from collections.abc import Mapping
from typing import Final

from gpuspawner.domain.leases import Lease, ServerKey
from gpuspawner.domain.profiles import profile_from_dict, profile_to_dict
from gpuspawner.domain.reconciliation import GrantCopy, read_fence
from gpuspawner.domain.slices import slice_from_dict, slice_to_dict

HUB: Final = "org.gpuspawner.hub"
USER: Final = "org.gpuspawner.user"
SERVER: Final = "org.gpuspawner.server"
LEASE: Final = "org.gpuspawner.lease"
FENCE: Final = "org.gpuspawner.fence"
SLICES: Final = "org.gpuspawner.slices"
GRANT: Final = "org.gpuspawner.grant"
# Of one container alone: an image that is made of it carries the same, and so do its containers.
MADE: Final = "org.gpuspawner.made"
_OF_GRANT: Final = frozenset({LEASE, FENCE, SLICES, GRANT})
_OURS: Final = _OF_GRANT | {HUB, USER, SERVER, MADE}
# Set by a site's operator on what may use all devices beside the leases, such as a monitor.
IGNORE: Final = "org.gpuspawner.ignore"


def labels_of(key: ServerKey, lease: Lease | None) -> dict[str, str]:
    """Return the labels by which a server's container is found.

    The names stand there as the hub spells them.
    """
    labels = {HUB: key.hub_id, USER: key.user, SERVER: key.server}
    if lease is not None:
        labels[LEASE] = str(lease.lease_id)
        labels[FENCE] = str(lease.fence)
        labels[SLICES] = ",".join(item.slice_id for item in lease.slices)
        labels[GRANT] = json.dumps(
            {
                "profile": profile_to_dict(lease.profile),
                "slices": [slice_to_dict(item) for item in lease.slices],
                "image": lease.image,
            },
            ensure_ascii=False, sort_keys=True,
        )  # fmt: skip
    return labels


def of_new(key: ServerKey, lease: Lease | None) -> dict[str, str]:
    """Return the labels of a container that is about to be made."""
    return {**labels_of(key, lease), MADE: uuid.uuid4().hex}


def key_of(labels: Mapping[str, str]) -> ServerKey | None:
    """Return whose server a container with these labels is; None when it is none of ours."""
    if HUB not in labels or USER not in labels:
        return None
    return ServerKey(hub_id=labels[HUB], user=labels[USER], server=labels.get(SERVER, ""))


def fence_of(labels: Mapping[str, str]) -> int | None:
    """Return the number of a container's grant; None when it has none."""
    return read_fence(labels.get(FENCE, ""))


def grant_of(labels: Mapping[str, str]) -> GrantCopy | None:
    """Return the grant that a container carries; None when it is none that we can read."""
    try:
        data = json.loads(labels.get(GRANT, ""))
        grant = GrantCopy(
            profile=profile_from_dict(data["profile"]),
            slices=tuple(slice_from_dict(item) for item in data["slices"]),
            image=data["image"],
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return grant if grant.slices else None


def without_images(labels: Mapping[str, str], of_image: Mapping[str, str]) -> dict[str, str]:
    """Return a container's labels without what only its image says, which is another's.

    An image that was made of a server's container (``docker commit``) carries its labels. Whoever
    runs a container of it by hand did not ask the hub; one that the hub made of it has its own
    labels, but the image's grant where it has none.
    """
    theirs = frozenset[str]()
    if FENCE in labels and labels[FENCE] == of_image.get(FENCE):
        theirs = _OF_GRANT
    if MADE in labels and labels[MADE] == of_image.get(MADE):
        theirs = _OURS
    return {name: text for name, text in labels.items() if name not in theirs}


def is_of(labels: dict[str, str] | None, key: ServerKey) -> bool:
    """Whether a container with these labels is this server's."""
    labels = labels or {}
    return (labels.get(HUB), labels.get(USER), labels.get(SERVER)) == (
        key.hub_id,
        key.user,
        key.server,
    )
