"""Bring the notebook image into a Docker engine, by the quickest way this machine has.

In this order: the engine has it; a kept archive of it; a build on the public Python image; as
root, a build on a base made with debootstrap (for machines that reach no image registry).
"""

import argparse
import contextlib
import fcntl
import hashlib
import io
import os
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import docker.errors
import requests

from tools.notebook_image import base, site

HERE = Path(__file__).parent
PUBLIC_BASE = "python:3.11-slim-bookworm"
_FILES = ("Dockerfile", "requirements.txt")
_REGISTRY_SECONDS = 15  # for each answer of the registry, not for the whole pull

Say = Callable[[str], None]


class ImageError(RuntimeError):
    """The image cannot be had; the message says in one sentence what is missing."""


def tag() -> str:
    """Return the image's name: the same content has the same name everywhere."""
    digest = hashlib.sha256()
    for name in _FILES:
        digest.update((HERE / name).read_bytes())
    return f"gpuspawner-notebook:{digest.hexdigest()[:12]}"


def cache_folder() -> Path:
    """Return the folder in which images are kept between runs."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "gpuspawner"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def one_at_a_time(what: str) -> Iterator[None]:
    """Let two runs that start together build once."""
    with (cache_folder() / f"{what}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def has_image(client: docker.APIClient, name: str) -> bool:
    """Say whether the engine has an image of this name."""
    try:
        client.inspect_image(name)
    except docker.errors.ImageNotFound:
        return False
    return True


def ensure(client: docker.APIClient, say: Say = lambda _: None) -> str:
    """Make sure that the engine has the notebook image, and return its tag."""
    name = tag()
    if has_image(client, name):
        return name
    with one_at_a_time("image"):
        kept = cache_folder() / f"{name.replace(':', '-')}.tar"
        if kept.exists():
            say(f"loading {name} from {kept}")
            load(client, kept)
        else:
            _build(client, name, _take_base(client, say), say)
            save(client, name, kept)
    return name


def load(client: docker.APIClient, archive: Path) -> None:
    """Load an archive that `save` wrote."""
    with archive.open("rb") as stream:
        for line in client.load_image(stream):
            if "error" in line:
                raise ImageError(f"the engine cannot load {archive}: {line['error']}")


def save(client: docker.APIClient, name: str, archive: Path) -> None:
    """Keep an image as an archive; another run never sees half of it."""
    half = archive.with_suffix(".half")
    with half.open("wb") as stream:
        for chunk in client.get_image(name):
            stream.write(chunk)
    half.replace(archive)


def _take_base(client: docker.APIClient, say: Say) -> str:
    if has_image(client, PUBLIC_BASE):
        return PUBLIC_BASE
    say(f"pulling {PUBLIC_BASE}")
    trouble = _pull(client, PUBLIC_BASE)
    if trouble is None:
        return PUBLIC_BASE
    if not has_image(client, base.NAME):
        kept = cache_folder() / f"{base.NAME.replace(':', '-')}.tar"
        if not kept.exists():
            lacking = base.missing()
            if lacking:
                raise ImageError(
                    f"no base for the notebook image: {PUBLIC_BASE} cannot be pulled ({trouble}), "
                    f"and a base of our own cannot be made: {lacking}"
                )
            say(f"{PUBLIC_BASE} cannot be pulled; making a base with debootstrap (a minute)")
            try:
                base.make(kept)
            except RuntimeError as error:
                raise ImageError(f"no base for the notebook image: {error}") from error
        say("importing the base")
        base.bring(client, kept)
    return base.NAME


def _pull(client: docker.APIClient, name: str) -> str | None:
    """Pull an image; return why not, in the engine's words, or None."""
    before, client.timeout = client.timeout, _REGISTRY_SECONDS
    try:
        for line in client.pull(name, stream=True, decode=True):
            if "error" in line:
                return str(line["error"])
    except (docker.errors.APIError, requests.RequestException) as error:
        return f"{getattr(error, 'explanation', None) or error}"
    finally:
        client.timeout = before
    return None


def _build(client: docker.APIClient, name: str, on: str, say: Say) -> None:
    say(f"building {name} on {on}")
    context = _context()
    seen: list[str] = []
    # The classic builder: the API offers no other, and it needs no client program.
    for line in client.build(
        fileobj=context,
        custom_context=True,
        tag=name,
        buildargs={"BASE": on, **site.proxy_environment()},
        network_mode="host",
        rm=True,
        forcerm=True,
        decode=True,
        timeout=900,
    ):
        seen.append(str(line.get("stream", "")).rstrip())
        if "error" in line:
            tail = "\n".join([text for text in seen if text][-15:])
            raise ImageError(f"the notebook image cannot be built: {line['error']}\n{tail}")


def _context() -> io.BytesIO:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for file in _FILES:
            archive.add(HERE / file, arcname=file)
        for file, content in site.material().items():
            entry = tarfile.TarInfo(f"site/{file}")
            entry.size = len(content)
            entry.mode = 0o644
            archive.addfile(entry, io.BytesIO(content))
    stream.seek(0)
    return stream


def main() -> int:
    """Print the tag of the image once the engine has it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docker-host", default=os.environ.get("DOCKER_HOST"))
    arguments = parser.parse_args()
    try:
        with contextlib.closing(
            docker.APIClient(base_url=arguments.docker_host, version="auto", timeout=300)
        ) as client:
            print(ensure(client, say=lambda text: print(text, file=sys.stderr)))
    except ImageError as error:
        print(error, file=sys.stderr)
        return 1
    except docker.errors.DockerException as error:
        print(f"no Docker engine answers: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
