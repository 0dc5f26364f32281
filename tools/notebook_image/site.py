"""What a build needs to know of this machine's way to the package index.

It goes into a stage that is not kept: the finished image holds nothing of it.
"""

import os
import subprocess
import sys
from ast import literal_eval
from pathlib import Path

_KEYS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")
_BUNDLE_VARIABLES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
_SYSTEM_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
_PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def material() -> dict[str, bytes]:
    """Return the files of the build-time folder, by name."""
    return {"pip.conf": _pip_configuration().encode(), "ca.crt": _trusted_authorities()}


def proxy_environment() -> dict[str, str]:
    """Return the proxy variables; Docker leaves arguments of these names out of the history."""
    found = {}
    for name in _PROXY_VARIABLES:
        value = os.environ.get(name) or os.environ.get(name.lower())
        if value:
            found[name] = found[name.lower()] = value
    return found


def _pip_configuration() -> str:
    """Return pip's settings as a file, those left out that name files of this machine."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        check=False,
        capture_output=True,
        text=True,
    )
    lines = ["[global]"]
    for line in listed.stdout.splitlines():
        name, _, quoted = line.partition("=")
        key = name.rpartition(".")[2]
        if key not in _KEYS:
            continue
        values = [v for v in str(literal_eval(quoted)).split() if not v.startswith("file:")]
        if values:
            lines.append(f"{key} = {' '.join(values)}")
    return "\n".join([*lines, ""])


def _trusted_authorities() -> bytes:
    """Return the certificates that this machine trusts; empty lets pip use its own."""
    named = [os.environ[v] for v in _BUNDLE_VARIABLES if os.environ.get(v)]
    for path in map(Path, [*named, *_SYSTEM_BUNDLES]):
        if path.is_file():
            return path.read_bytes()
    return b""
