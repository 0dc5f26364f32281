"""A SQLite ledger on a network file system is refused; local ones and unknown ones pass."""

from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.ledger.mounts import NetworkFileSystemError, file_system_of, refuse_network
from gpuspawner.ledger.store import Ledger
from tests.ledger.children import outcome
from tests.ledger.disks import dead_network, small_disk

pytestmark = pytest.mark.proves("R13")

Opener = Callable[..., Ledger]
ROOT = "22 1 0:21 / / rw,relatime shared:1 - ext4 /dev/sda1 rw"


def line(point: str, kind: str, *, options: str = "") -> str:
    return f"36 22 0:30 / {point} rw,noatime {options}- {kind} source:/x rw,vers=4.2"


@pytest.mark.parametrize(
    ("path", "lines", "kind"),
    [
        ("/srv/hub", [ROOT], "ext4"),
        ("/srv/hub", [ROOT, line("/srv", "nfs4")], "nfs4"),
        ("/srv/hub", [line("/srv", "nfs4"), ROOT], "nfs4"),
        ("/srv/hub", [ROOT, line("/srv", "nfs4"), line("/srv/hub", "xfs")], "xfs"),
        ("/srv/hub", [ROOT, line("/srv/hub", "xfs"), line("/srv/hub", "cifs")], "cifs"),
        ("/srv/hubs", [ROOT, line("/srv/hub", "nfs")], "ext4"),
        ("/srv", [ROOT, line("/srv/hub", "nfs")], "ext4"),
        ("/my hub/x", [ROOT, line(r"/my\040hub", "smb3")], "smb3"),
        ("/a\\b\tc\nd", [ROOT, line(r"/a\134b\011c\012d", "9p")], "9p"),
        ("/srv/hub", [ROOT, line("/srv", "ceph", options="shared:3 master:7 ")], "ceph"),
        ("/srv/hub", [], None),
        ("/srv/hub", ["", "no such line", "1 2 - ", "1 2 0:1 / /srv rw - "], None),
    ],
)
def test_the_longest_mount_point_counts_and_of_equal_ones_the_last(
    path: str, lines: list[str], kind: str | None
) -> None:
    assert file_system_of(PurePosixPath(path), "\n".join(lines) + "\n") == kind


@given(st.text())
def test_no_text_is_too_strange(text: str) -> None:
    file_system_of(PurePosixPath("/srv/hub"), text)


@pytest.mark.parametrize(
    "kind",
    ["nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "9p", "ceph", "glusterfs", "lustre",
     "afs"],
)  # fmt: skip
def test_networks_are_refused_with_what_to_do(tmp_path: Path, kind: str) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"{ROOT}\n{line('/home', kind)}\n")
    with pytest.raises(NetworkFileSystemError) as caught:
        refuse_network(Path("/home/hub/gpuspawner.sqlite"), mounts)
    assert f"/home/hub is of type {kind}:" in str(caught.value)
    assert "local disk, or PostgreSQL" in str(caught.value)


@pytest.mark.parametrize(
    "kind",
    ["overlay", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "fuse.unheard-of", "fuseblk", "virtiofs"],
)
def test_others_pass(tmp_path: Path, kind: str) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"{ROOT}\n{line('/home', kind)}\n")
    refuse_network(Path("/home/hub/gpuspawner.sqlite"), mounts)
    refuse_network(Path("/home/hub/gpuspawner.sqlite"), tmp_path / "none")


def test_a_real_network_is_refused_and_a_link_to_it_too(
    tmp_path: Path, open_ledger: Opener
) -> None:
    with dead_network(tmp_path / "far away") as folder:
        (tmp_path / "near").symlink_to(folder)
        for path in (folder, tmp_path / "near"):
            ledger = open_ledger(f"sqlite:///{path}/gpuspawner.sqlite")
            for use in (ledger.write, ledger.read):
                refused = pytest.raises(
                    NetworkFileSystemError, match=r"far away is of type fuse\.s"
                )
                with refused, use():  # type: ignore[operator]
                    pytest.fail("opened")
    with ledger.write() as books:  # it is local now
        assert books.next_fence() == 1


def test_a_real_local_disk_passes(tmp_path: Path) -> None:
    with small_disk(tmp_path / "a disk", "4m") as folder:
        assert outcome(f"sqlite:///{folder}/gpuspawner.sqlite") == "written"
