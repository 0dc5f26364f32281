#!/usr/bin/env bash
# Make .venv with this checkout installed in it.
#
#   tools/environment.sh hub,proxy,notebook
#
# Done again only when pyproject.toml has changed: a stamp per set of extras holds its hash.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

extras=${1:?which extras? for example: test}

hash=$(cksum <pyproject.toml)
stamp=".venv/installed-${extras//,/-}"
if [ -x .venv/bin/python ] && [ "$(cat "$stamp" 2>/dev/null)" = "$hash" ]; then
    exit 0
fi

find_python() {
    local name
    for name in python3.13 python3.12 python3.11 python3; do
        # Run it: a name on the PATH may be a shim for a version that is not there.
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    echo "gpuspawner needs Python 3.11 or newer, and none was found on the PATH." >&2
    return 1
}

if [ ! -x .venv/bin/python ]; then
    python=$(find_python)
    echo "making .venv with $("$python" --version)"
    if ! "$python" -m venv .venv; then
        rm -rf .venv
        echo "$python cannot make a virtual environment (on Debian: package python3-venv)." >&2
        exit 1
    fi
fi

echo "installing gpuspawner[$extras] into .venv"
.venv/bin/python -m pip install --quiet --quiet --disable-pip-version-check --editable ".[$extras]"
echo "$hash" >"$stamp"
