"""The variables by which a server's processes are found again, and whose they are."""

import os
from typing import Final

from gpuspawner.domain.leases import Lease, ServerKey
from gpuspawner.domain.reconciliation import read_fence

SERVER: Final = "GPUSPAWNER_SERVER"  # hub, user and server, as one text
LEASE: Final = "GPUSPAWNER_LEASE"  # <hub id>:<lease>:<fencing number>
# Set by the server's own process just before it becomes the server: its children inherit the
# variable and have another number, so that the server is told from what it left behind.
LEADER: Final = "GPUSPAWNER_PID"


def marks_of(key: ServerKey, lease: Lease | None) -> dict[str, str]:
    """Return the marks of a server's processes."""
    marks = {SERVER: key.lane}
    if lease is not None:
        marks[LEASE] = f"{key.hub_id}:{lease.lease_id}:{lease.fence}"
    return marks


def is_of_server(environment: dict[bytes, bytes], key: ServerKey) -> bool:
    """Whether a process with this environment belongs to the server."""
    return environment.get(SERVER.encode()) == os.fsencode(key.lane)


def key_and_fence_of(environment: dict[bytes, bytes]) -> tuple[ServerKey, int] | None:
    """Return the server and the grant that a process with this environment belongs to, if any."""
    lane = os.fsdecode(environment.get(SERVER.encode(), b""))
    parts = os.fsdecode(environment.get(LEASE.encode(), b"")).split(":")
    key = ServerKey.of_lane(lane)
    fence = read_fence(parts[2]) if len(parts) == 3 else None
    if key is None or fence is None or parts[0] != key.hub_id:
        return None
    return key, fence


def lease_mark(environment: dict[bytes, bytes]) -> bytes | None:
    """Return what all processes of one grant have in common; None for one of no grant."""
    return environment.get(LEASE.encode())


def is_of_lease(environment: dict[bytes, bytes], lease: Lease) -> bool:
    """Whether a process with this environment belongs to the lease."""
    mark = os.fsdecode(environment.get(LEASE.encode(), b""))
    hub_id, _, rest = mark.partition(":")
    return (hub_id, rest.rpartition(":")[2]) == (lease.key.hub_id, str(lease.fence))


def is_waiting(environment: dict[bytes, bytes]) -> bool:
    """Whether this is a server's process that was made and not let go yet."""
    return SERVER.encode() in environment and LEADER.encode() not in environment


def is_leader(environment: dict[bytes, bytes], pid: int) -> bool:
    """Whether the process that has this number is the server itself."""
    return environment.get(LEADER.encode()) == str(pid).encode()
