"""Disks of a test's own: one that fills up, one that fails under open files, a dead network."""

import ctypes
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import lacking

_LAZILY = 2  # MNT_DETACH
_NO_SUID_NO_DEVICES = 6


def mount(*arguments: str) -> None:
    """Run `mount`; the test ends for want of rights where it may not."""
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lacking(f"mount {' '.join(arguments)}: {done.stderr.strip()}")


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A disk of a few pages."""
    folder.mkdir()
    mount("-t", "tmpfs", "-o", f"size={size}", "gpuspawner-test", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def failing_disk(folder: Path, image: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    """A disk that turns read-only when it fails, as ext4 does; and a way to put in its copy."""
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(16 * 2**20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)

    def put_in(disk: Path) -> None:
        mount("-o", "loop,errors=remount-ro", str(disk), str(folder))

    def replace() -> None:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        subprocess.run(["cp", image, f"{image}-copy"], check=True)
        put_in(Path(f"{image}-copy"))

    put_in(image)
    try:
        yield folder, replace
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def dead_network(folder: Path) -> Iterator[Path]:
    """A network file system whose server is gone: the kernel has it, nobody answers for it."""
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        handle = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        lacking(f"/dev/fuse: {error}")
    try:
        options = f"fd={handle},rootmode=40000,user_id=0,group_id=0"
        failed = libc.mount(
            b"lab@files:/", os.fsencode(folder), b"fuse.sshfs", _NO_SUID_NO_DEVICES,
            options.encode(),
        )  # fmt: skip
        if failed:
            lacking(f"a network file system: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(handle)
    try:
        yield folder
    finally:
        libc.umount2(os.fsencode(folder), _LAZILY)
