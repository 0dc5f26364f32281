"""Our labels on containers."""

from typing import Final

from gpuspawner.domain.leases import Lease, ServerKey

HUB: Final = "org.gpuspawner.hub"
USER: Final = "org.gpuspawner.user"
SERVER: Final = "org.gpuspawner.server"
LEASE: Final = "org.gpuspawner.lease"
FENCE: Final = "org.gpuspawner.fence"
SLICES: Final = "org.gpuspawner.slices"


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
