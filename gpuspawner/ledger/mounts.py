"""On what kind of file system a file lies: SQLite's locks and shared memory need a local one.

Over a network, locks are lost when a server restarts, and the shared memory by which SQLite's
processes find each other's writes does not reach other machines: two of them would then write into
each other's pages. What is known to be a network is refused; what is not known passes.
"""

import re
from pathlib import Path, PurePosixPath
from typing import Final

from gpuspawner.ledger.errors import LedgerAwayError

_MOUNTS: Final = Path("/proc/self/mountinfo")
_NETWORKS: Final = frozenset({
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "fuse.ceph", "fuse.davfs",
    "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs",
    "glusterfs", "gpfs", "kafs", "lustre", "ncpfs", "nfs", "nfs4", "orangefs", "pvfs2", "smb3",
    "smbfs",
})  # fmt: skip
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


class NetworkFileSystemError(LedgerAwayError):
    """A SQLite ledger lies on a network file system."""


def file_system_of(path: PurePosixPath, mounts: str) -> str | None:
    """Name the type of the file system of an absolute path, such as ``ext4``.

    Args:
        path: without symbolic links.
        mounts: the text of ``/proc/self/mountinfo``.

    Returns:
        The type of the longest mount point above the path, the latest of equal ones, for it hides
        the others; None when no line tells.
    """
    best: tuple[int, str] | None = None
    for line in mounts.splitlines():
        before, separator, after = line.partition(" - ")
        fields, kinds = before.split(" "), after.split(" ")
        if not separator or len(fields) < 5 or not kinds[0]:
            continue
        point = PurePosixPath(_ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields[4]))
        depth = len(point.parts)
        if path.is_relative_to(point) and (best is None or depth >= best[0]):
            best = depth, kinds[0]
    return None if best is None else best[1]


def refuse_network(file: Path, mounts: Path = _MOUNTS) -> None:
    """Refuse a ledger's file on a network file system.

    Raises:
        NetworkFileSystemError: it is known to lie on one.
    """
    folder = file.parent
    try:
        kind = file_system_of(PurePosixPath(folder), mounts.read_text("utf-8", "surrogateescape"))
    except OSError:
        return  # no such list on this system
    if kind in _NETWORKS:
        raise NetworkFileSystemError(
            f"the ledger must not lie on a network file system, and {folder} is of type {kind}: "
            "SQLite's locks do not hold there; use a folder on a local disk, or PostgreSQL"
        )
