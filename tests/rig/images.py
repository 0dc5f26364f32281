"""The images of the tests, and the kept data folder from which an engine has them at once."""

import contextlib
import hashlib
import io
import os
import shutil
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker

from tests.rig.engine import PLANTED, OwnedEngine, engine_version, missing_for_engine
from tools.notebook_image import build

_STUB = (Path(__file__).parent / "stub" / "stub_server.py").read_bytes()

Say = build.Say

_KEEP_SECONDS = 3 * 24 * 3600

_STUB_LINES = """FROM {notebook}
COPY stub_server.py /opt/stub_server.py
CMD ["python3", "-S", "/opt/stub_server.py"]
"""

_DOCKERFILES = {
    "stub": _STUB_LINES,
    # As CUDA images do: a container without a lease must see no GPU all the same.
    "sees-all-gpus": "FROM {stub}\nENV NVIDIA_VISIBLE_DEVICES=all\n",
    "exits-at-once": 'FROM {stub}\nCMD ["sh", "-c", "echo no kernel to be found >&2; exit 3"]\n',
    "ignores-sigterm": "FROM {stub}\nENV STUB_IGNORES_SIGTERM=1\n",
}


@dataclass(frozen=True)
class Images:
    """Names of the images that every engine of the tests has."""

    notebook: str
    stub: str
    sees_all_gpus: str
    exits_at_once: str
    ignores_sigterm: str


def _digest() -> str:
    digest = hashlib.sha256(build.tag().encode() + _STUB)
    for text in _DOCKERFILES.values():
        digest.update(text.encode())
    return digest.hexdigest()[:12]


def names() -> Images:
    """Return the names, whether an engine has the images or not."""
    digest = _digest()
    tags = {k.replace("-", "_"): f"gpuspawner-test-{k}:{digest}" for k in _DOCKERFILES}
    return Images(notebook=build.tag(), **tags)


def derive(client: docker.APIClient) -> None:
    """Build the images of the tests on the notebook image, which the engine must have."""
    images = names()
    for kind, text in _DOCKERFILES.items():
        dockerfile = text.format(notebook=images.notebook, stub=images.stub)
        build_small(
            client,
            getattr(images, kind.replace("-", "_")),
            dockerfile,
            {"stub_server.py": _STUB},
        )


def build_small(
    client: docker.APIClient,
    name: str,
    dockerfile: str,
    files: dict[str, bytes] | None = None,
    **settings: Any,
) -> None:
    """Build an image from a Dockerfile's text and a few files.

    Args:
        client: of the engine.
        name: the image's name.
        dockerfile: its text.
        files: by their names in the build.
        **settings: of ``docker.APIClient.build``.

    Raises:
        build.ImageError: it cannot be built.
    """
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        for file, content in {"Dockerfile": dockerfile.encode(), **(files or {})}.items():
            entry = tarfile.TarInfo(file)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    context.seek(0)
    seen: list[str] = []
    for line in client.build(
        fileobj=context,
        custom_context=True,
        tag=name,
        rm=True,
        forcerm=True,
        decode=True,
        **settings,
    ):
        seen.append(str(line.get("stream", "")).rstrip())
        if "error" in line:
            tail = "\n".join([text for text in seen if text][-15:])
            raise build.ImageError(f"{name} cannot be built: {line['error']}\n{tail}")


def seed(say: Say = lambda _: None) -> Path:
    """Return a kept data folder that holds the images, making it if need be.

    Loading the archive into a fresh engine takes half a minute on two cores; planting this
    folder by hard links takes about a second.
    """

    def fill(client: docker.APIClient, say: Say) -> None:
        build.ensure(client, say)
        derive(client)

    return kept(_digest(), fill, say)


def kept(
    name: str,
    fill: Callable[[docker.APIClient, Say], None],
    say: Say = lambda _: None,
    *,
    base: Path | None = None,
) -> Path:
    """Return the kept data folder of this name; if there is none, fill an engine and keep its."""
    folder = build.cache_folder() / f"engine-{engine_version()}-{name}"
    with build.one_at_a_time("seed" if base is None else "seed-on-seed"):
        if not folder.exists():
            with OwnedEngine(seed=base) as engine:
                with contextlib.closing(engine.client(timeout=900)) as client:
                    fill(client, say)
                engine.stop()
                _keep(engine.folder / "data", folder)
        os.utime(folder)
    return folder


def _keep(data: Path, kept: Path) -> None:
    half = kept.with_suffix(".half")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir()
    for part in PLANTED:
        shutil.move(data / part, half / part)
    half.replace(kept)
    for old in kept.parent.glob("engine-*"):
        if time.time() - old.stat().st_mtime > _KEEP_SECONDS:
            shutil.rmtree(old, ignore_errors=True)


def main() -> None:
    """Make the images before the tests: the first time takes minutes, and says what it does.

    What is missing is no failure here: the tests that need it say so.
    """
    from tests.rig import hub_image  # it builds on what is here

    reason = missing_for_engine()
    if reason is None:
        try:
            hub_image.seed(lambda text: print(text, file=sys.stderr))
        except build.ImageError as error:
            reason = str(error)
    if reason:
        print(f"no engine for the tests: {reason}", file=sys.stderr)


if __name__ == "__main__":
    main()
