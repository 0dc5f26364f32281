"""Guarantees and the tests that prove them: what a marker may say, and when a run fails."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT
from tools.docs import guarantees
from tools.docs.guarantee_texts import GUARANTEES, NOT_YET
from tools.docs.guarantees import MarkerError, Proof, check, proofs

MARKED = '''\
"""Of a module."""
import pytest
pytestmark = [pytest.mark.engine, pytest.mark.proves("P1")]

class TestIt:
    """Of a class.

    More of it.
    """
    pytestmark = pytest.mark.proves("P2")

    @pytest.mark.proves("P3", "R1")
    @pytest.mark.parametrize("n", [1])
    def test_inner(self, n): ...

@pytest.mark.proves("S1")
async def test_outer():
    """Of a function (H7, P2)."""
'''


def written(folder: Path, text: str, name: str = "test_it.py") -> Path:
    file = folder / "tests" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return folder


# --- the page ---------------------------------------------------------------------------------


def test_markers_are_read_wherever_pytest_reads_them(tmp_path: Path) -> None:
    written(tmp_path, MARKED)
    written(tmp_path, "import pytest\n@pytest.mark.proves('R2')\ndef test_a(): ...", "a/test_a.py")
    assert proofs(tmp_path) == [
        Proof("tests/a/test_a.py", "test_a", "", ("R2",)),
        Proof("tests/test_it.py", "", "Of a module.", ("P1",)),
        Proof("tests/test_it.py", "TestIt", "Of a class.", ("P2",)),
        Proof("tests/test_it.py", "TestIt.test_inner", "", ("P3", "R1")),
        Proof("tests/test_it.py", "test_outer", "Of a function.", ("S1",)),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("@pytest.mark.proves('P99')\ndef test_a(): ...", "test_it.py:1: there is no guarantee"),
        ("\n@pytest.mark.proves()\ndef test_a(): ...", "test_it.py:2: expected ids"),
        ("@pytest.mark.proves\ndef test_a(): ...", "expected ids"),
        ("@pytest.mark.proves(*IDS)\ndef test_a(): ...", "expected ids"),
        ("@pytest.mark.proves('P1')\ndef helper(): ...", "not on a test"),
        ("x = pytest.param(1, marks=pytest.mark.proves('P1'))", "not on a test"),
        ("pytestmark = pytest.mark.proves(1)", "there is no guarantee 1"),
    ],
)
def test_a_marker_that_proves_nothing_is_an_error(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(MarkerError, match=said):
        proofs(written(tmp_path, text))


def test_what_is_proven_and_what_is_listed_as_not_add_up() -> None:
    everything = Proof("tests/test_it.py", "test_a", "", tuple(GUARANTEES))
    check([everything], frozenset())
    most = Proof("tests/test_it.py", "test_a", "", tuple(n for n in GUARANTEES if n != "R7"))
    check([most], frozenset({"R7"}))
    with pytest.raises(MarkerError, match="no test proves R7"):
        check([most], frozenset())
    with pytest.raises(MarkerError, match="take R7 from NOT_YET"):
        check([everything], frozenset({"R7"}))
    with pytest.raises(MarkerError, match="take P99 from NOT_YET"):
        check([everything], frozenset({"P99"}))


def test_the_page_names_each_guarantee_and_each_of_its_tests() -> None:
    page = guarantees.page()
    assert page == guarantees.page()
    sections = dict(part.split("\n", 1) for part in page.split("\n### ")[1:])
    assert [title.split(":")[0] for title in sections] == list(GUARANTEES)
    found = proofs(ROOT)
    for title, text in sections.items():
        name = title.split(":")[0]
        assert GUARANTEES[name].text in text
        told = [line for line in text.splitlines() if line.startswith("- ")]
        proving = [proof for proof in found if name in proof.ids]
        assert len(told) == len(proving)
        assert all(f"`{proof.file}`" in line for line, proof in zip(told, proving, strict=True))
        assert ("Not proven yet" in text) is (name in NOT_YET) is (proving == [])


# --- a run ------------------------------------------------------------------------------------

SETTINGS = """\
[pytest]
testpaths = tests
addopts = -p tests.guarantees -p no:cacheprovider -p no:randomly
markers =
    proves(*ids): proves guarantees
    gpu: needs a GPU
"""
ALL = ", ".join(repr(name) for name in GUARANTEES if name not in NOT_YET)
PROVEN = f"""\
import pytest
@pytest.mark.proves({ALL})
def test_all(): ...
"""


def run(folder: Path, *arguments: str, ci: bool = True) -> tuple[int, str]:
    (folder / "pytest.ini").write_text(SETTINGS)
    kept = {k: v for k, v in os.environ.items() if k != "CI" and not k.startswith("PYTEST_")}
    environment = {**kept, "PYTHONPATH": str(ROOT)} | ({"CI": "1"} if ci else {})
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_a_run_that_proves_everything_passes(tmp_path: Path) -> None:
    written(tmp_path, PROVEN)
    for arguments in ((), ("tests",), (str(tmp_path / "tests"),), ("-n", "2")):
        status, said = run(tmp_path, *arguments)
        assert status == 0, said
        assert "not proven" not in said


UNPROVEN: dict[str, tuple[str, str]] = {
    "no test": (PROVEN.replace("'P1', ", ""), "P1 has no test that passed"),
    "skipped": (
        f"{PROVEN}\n@pytest.mark.proves('R2')\ndef test_b(): pytest.skip('no engine')\n",
        "R2 is not proven by tests/test_it.py::test_b (skipped)",
    ),
    "an expected failure": (
        f"{PROVEN}\n@pytest.mark.xfail\n@pytest.mark.proves('R2')\ndef test_b(): assert 0\n",
        "R2 is not proven by tests/test_it.py::test_b (skipped)",
    ),
    "failed": (
        f"{PROVEN}\n@pytest.mark.proves('R2')\ndef test_b(): assert 0\n",
        "R2 is not proven by tests/test_it.py::test_b (failed)",
    ),
    "failed at its end": (
        f"{PROVEN}\n@pytest.fixture\ndef broken():\n    yield\n    assert 0\n"
        "@pytest.mark.proves('R2')\ndef test_b(broken): ...\n",
        "R2 is not proven by tests/test_it.py::test_b (failed)",
    ),
    "only a test for a GPU": (
        PROVEN.replace("'P1', ", "")
        + "@pytest.mark.gpu\n@pytest.mark.proves('P1')\ndef test_b(): pytest.skip('no GPU')\n",
        "P1 has no test that passed",
    ),
}


@pytest.mark.parametrize("what", UNPROVEN)
@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_run_that_leaves_a_guarantee_unproven_fails(
    tmp_path: Path, what: str, processes: str
) -> None:
    text, line = UNPROVEN[what]
    status, said = run(written(tmp_path, text), "-n", processes)
    assert status == 1, said
    assert line in said.splitlines()


def test_a_test_for_a_gpu_may_be_skipped(tmp_path: Path) -> None:
    more = "@pytest.mark.gpu\n@pytest.mark.proves('P1')\ndef test_b(): pytest.skip('no GPU')\n"
    status, said = run(written(tmp_path, PROVEN + more))
    assert status == 0, said


PARTS: dict[str, dict[str, Any]] = {
    "outside CI": {"ci": False},
    "one file": {"arguments": ["tests/test_it.py"]},
    "by name": {"arguments": ["-k", "other"]},
    "by marker": {"arguments": ["-m", "not gpu"]},
    "deselected": {"arguments": ["--deselect", "tests/test_it.py::test_nothing"]},
    "ignored": {"arguments": ["--ignore", "tests/test_more.py"]},
}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_the_suite_has_nothing_to_prove(tmp_path: Path, part: str) -> None:
    text = "import pytest\ndef test_other(): ...\n@pytest.mark.gpu\ndef test_nothing(): ...\n"
    written(tmp_path, text)
    written(tmp_path, "def test_more(): ...\n", "test_more.py")
    asked = PARTS[part]
    status, said = run(tmp_path, *asked.get("arguments", ()), ci=asked.get("ci", True))
    assert status == 0, said


def test_a_guarantee_that_is_none_stops_the_run(tmp_path: Path) -> None:
    text = "import pytest\n@pytest.mark.proves('P99')\ndef test_a(): ...\n"
    status, said = run(written(tmp_path, text), "tests/test_it.py", ci=False)
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "tests/test_it.py::test_a: there is no guarantee 'P99'" in said
