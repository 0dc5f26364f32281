"""Ending what an engine left behind: processes, mounts, control groups, bridges, files.

An engine that is closed in order leaves little. One whose test run was killed leaves everything,
and the next run clears it: the lock of its folder is free then.
"""

import contextlib
import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import psutil

from tests.rig.blocks import Block

_ENGINE_PROGRAMS = ("dockerd", "containerd", "containerd-shim", "docker-proxy")


def lock_folder(folder: Path) -> int | None:
    """Take the lock of an engine's folder; None if its engine lives."""
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def sweep(parent: Path, prefix: str) -> None:
    """Clear the folders of engines whose test run is gone."""
    for folder in parent.glob(f"{prefix}*"):
        try:
            lock = lock_folder(folder)
        except (FileNotFoundError, PermissionError, NotADirectoryError):
            continue  # just being made or removed, or somebody else's
        if lock is not None:
            wipe(folder)
            os.close(lock)


def wipe(folder: Path, block: Block | None = None) -> None:
    """Clear everything of the engine in this folder, whatever state it is in."""
    _kill_processes(folder, block)
    _remove_control_groups(folder / "data" / "containers")
    _unmount_below(folder)
    if block is not None:
        block.remove_bridges()
    shutil.rmtree(folder, ignore_errors=True)


def _kill_processes(folder: Path, block: Block | None) -> None:
    marks = [f"{folder}/"]
    if block is not None:
        marks.append(f"10.{block.number}.")  # the address in a docker-proxy's arguments
    victims: list[psutil.Process] = []
    for process in psutil.process_iter(["name", "cmdline"]):
        if not (process.info["name"] or "").startswith(_ENGINE_PROGRAMS):
            continue
        line = " ".join(process.info["cmdline"] or [])
        if any(mark in line for mark in marks):
            with contextlib.suppress(psutil.NoSuchProcess):
                victims += [*process.children(recursive=True), process]
    for victim in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()
    psutil.wait_procs(victims, timeout=10)


def _remove_control_groups(containers: Path) -> None:
    ids = [path.name for path in containers.glob("*")]
    hierarchies = [Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").glob("*/")]
    for hierarchy in hierarchies:
        for container in ids:
            with contextlib.suppress(OSError):
                (hierarchy / "docker" / container).rmdir()


def _unmount_below(folder: Path) -> None:
    mounts = [line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in reversed([m for m in mounts if m.startswith(f"{folder}/")]):
        subprocess.run(["umount", "--lazy", mount], check=False, timeout=30)
