"""The hub's image of the how-to, built from the page's own Dockerfile where no registry is reached.

Two parts, since one changes seldom and the other with every line of code: what the Dockerfile
installs is kept for later runs like the other images, and this checkout's wheel is laid on top.
"""

import hashlib
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path

import docker

from tests.docs.pages import ROOT, blocks
from tests.rig import images
from tools.notebook_image import build, site

PAGE = ROOT / "docs/how-to/run-the-hub-in-a-container.md"
_PACKAGE = re.compile(r'"gpuspawner\[([a-z,]+)\]"')
_SITE = "/tmp/site"

# The page's base is a public image with Python. The notebook image stands in for it: it is at
# hand, and what it has in /opt/notebook does no harm. The stage that knows this machine's way to
# the package indexes is not kept.
_LINES = """FROM {notebook} AS public
USER root
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
FROM public AS build
COPY site {site}
ENV {variables}
{all}
FROM public
COPY --from=build /opt/jupyterhub /opt/jupyterhub
{settings}
"""

_CHECKOUT_LINES = """FROM {hub}
COPY {wheel} {site}/
RUN pip install --no-cache-dir --no-deps --no-index {site}/{wheel}
"""


def name() -> str:
    """Return the name of the kept part: the same page and needs have the same name."""
    digest = hashlib.sha256(_dockerfile(variables="").encode()).hexdigest()[:12]
    return f"gpuspawner-test-hub:{digest}"


def seed(say: Callable[[str], None] = lambda _: None) -> Path:
    """Return a kept data folder that holds the other images and this one, making it if need be.

    It is not the folder of all engines: they would have twenty thousand files more to link.
    """
    return images.kept(name().replace(":", "-"), _build, say, base=images.seed(say))


def add_checkout(client: docker.APIClient, tag: str) -> None:
    """Build the image with this checkout's gpuspawner, on an engine with the kept part."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
        subprocess.run([*command, "--directory", folder], cwd=ROOT, check=True, capture_output=True)
        (wheel,) = Path(folder).glob("*.whl")
        lines = _CHECKOUT_LINES.format(hub=name(), wheel=wheel.name, site=_SITE)
        images.build_small(client, tag, lines, {wheel.name: wheel.read_bytes()})


def _build(client: docker.APIClient, say: Callable[[str], None]) -> None:
    say(f"building {name()} (two minutes)")
    material = site.material()
    variables = {"PIP_CONFIG_FILE": f"{_SITE}/pip.conf", "NPM_CONFIG_REGISTRY": _npm_registry()}
    if material["ca.crt"]:
        variables |= dict.fromkeys(("PIP_CERT", "NODE_EXTRA_CA_CERTS"), f"{_SITE}/ca.crt")
    dockerfile = _dockerfile(" ".join(f"{key}={value}" for key, value in variables.items()))
    files = {f"site/{file}": content for file, content in material.items()}
    images.build_small(
        client, name(), dockerfile, files, buildargs=site.proxy_environment(), network_mode="host"
    )
    client.prune_images({"dangling": True})


def _npm_registry() -> str:
    npm = Path(sys.executable).with_name("npm")  # of the extra `proxy`
    asked = [npm, "config", "get", "registry"]
    done = subprocess.run(asked, check=True, capture_output=True, text=True, cwd=ROOT)
    return done.stdout.strip()


def _dockerfile(variables: str) -> str:
    """Return the page's Dockerfile between our base and a last stage without that of the build."""
    (page,) = blocks(PAGE, "dockerfile")
    text = re.sub(r"\\\n\s*", "", page.text)
    first, *instructions = [line for line in text.splitlines() if line and line[0] != "#"]
    assert first.startswith("FROM python:"), first
    assert len(_PACKAGE.findall(text)) == 1, "the page installs gpuspawner once"
    kept = [line for line in instructions if not line.startswith("RUN ")]
    return _LINES.format(
        notebook=build.tag(),
        site=_SITE,
        variables=variables or "NONE=",
        all=_PACKAGE.sub(_needs, "\n".join(instructions)),
        settings="\n".join(kept),
    )


def _needs(found: re.Match[str]) -> str:
    """Return what the extras of gpuspawner need, in place of gpuspawner itself."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    return " ".join(f'"{need}"' for extra in found[1].split(",") for need in extras[extra])
