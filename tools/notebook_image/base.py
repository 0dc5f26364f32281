"""A base image made on this machine, for where no image registry is reached."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import docker

_SUITE = "bookworm"
NAME = f"gpuspawner-base:{_SUITE}"
_PACKAGES = ("python3", "python3-venv", "ca-certificates")
# What apt would need to go on, and what nobody reads in a container.
_LEFT_OUT = (
    "./var/cache/apt/archives/*",
    "./var/lib/apt/lists/*",
    "./usr/share/doc/*",
    "./usr/share/man/*",
    "./usr/share/locale/*",
)


def missing() -> str | None:
    """Say in words what this machine lacks to make a base; None if nothing."""
    if os.geteuid() != 0:
        return "that needs root"
    if _debootstrap() is None:
        return "debootstrap is not installed (Debian package debootstrap)"
    return None


def _debootstrap() -> str | None:
    return shutil.which("debootstrap", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def make(archive: Path) -> None:
    """Write a minimal Debian with Python as an archive."""
    program = _debootstrap()
    if program is None:
        raise RuntimeError("debootstrap is not installed")
    with tempfile.TemporaryDirectory(prefix="base-", dir=archive.parent) as folder:
        root = Path(folder) / "root"
        include = f"--include={','.join(_PACKAGES)}"
        done = subprocess.run(
            [program, "--variant=minbase", include, _SUITE, str(root)],
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            tail = "\n".join(done.stdout.splitlines()[-5:])
            raise RuntimeError(f"debootstrap failed:\n{tail}\n{done.stderr}")
        half = archive.with_suffix(".half")
        left_out = [f"--exclude={pattern}" for pattern in _LEFT_OUT]
        subprocess.run(
            ["tar", "--create", "--file", str(half), *left_out, "--directory", str(root), "."],
            check=True,
        )
        half.replace(archive)


def bring(client: docker.APIClient, archive: Path) -> None:
    """Import a base that `make` wrote."""
    repository, _, tag = NAME.partition(":")
    client.import_image_from_file(str(archive), repository=repository, tag=tag)
