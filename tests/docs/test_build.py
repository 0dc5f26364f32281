"""Sphinx builds the documentation without a warning."""

import importlib.util
import subprocess
import sys
from pathlib import Path

from tests.conftest import lacking
from tests.docs.pages import ROOT


def test_the_documentation_builds_without_a_warning(tmp_path: Path) -> None:
    for module in ("sphinx", "myst_parser"):
        if importlib.util.find_spec(module) is None:
            lacking(f"{module} is not installed (extra docs)")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet"]
    done = subprocess.run(
        [*command, "--doctree-dir", str(tmp_path / "trees"), "docs", str(tmp_path / "html")],
        cwd=ROOT, check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "html" / "index.html").exists()
