"""The command itself: help, errors that say what to do, and its exit status."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuspawner import __version__
from gpuspawner.broker.broker import Broker
from gpuspawner.ledger.store import Ledger
from tests.builders import T0, sharing_policy
from tests.cli.conftest import Ran
from tests.doubles.fault_proxy import FaultProxy
from tests.rig.engine import OwnedEngine

Run = Callable[..., Ran]
READING = (
    ["status"], ["leases"], ["cordon", "GPU-a"], ["uncordon", "GPU-a"], ["images", "pull"],
    ["end", "1", "--force", "--note", "x", "--yes"],
)  # fmt: skip
VERBS = {
    ("status",): "--json", ("leases",): "--all", ("cordon",): "--note", ("uncordon",): "target",
    ("images",): "pull", ("images", "pull"): "--even-if-present", ("agent",): "--simulate",
    ("end",): "--force",
}  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_help(run: Run, verb: tuple[str, ...]) -> None:
    ran = run(*verb, "--help")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.startswith(f"usage: gpuspawner {' '.join(verb)}")
    assert VERBS[verb] in ran.out


def test_the_command_has_help_for_all_verbs(run: Run) -> None:
    out = run("--help").out
    for verb in ("status", "leases", "cordon", "uncordon", "end", "images", "agent", "service"):
        assert f"\n    {verb} " in out
    assert run("--version") == Ran(0, f"{__version__}\n", "")


@pytest.mark.parametrize(
    "arguments", [[], ["no-such-verb"], ["status", "--no-such"], ["leases", "--limit", "x"]]
)
def test_wrong_usage_is_status_2(run: Run, arguments: list[str]) -> None:
    ran = run(*arguments)
    assert ran.status == 2
    assert ran.err.startswith("usage: gpuspawner")


@pytest.mark.parametrize(
    ("argument", "least"),
    [("--observe-seconds", "1"), ("--guard-seconds", "0.1"), ("--reconcile-seconds", "0.1")],
)
@pytest.mark.parametrize("given", ["0", "0.09", "-1", "nan", "inf", "3601", "soon", ""])
def test_an_agents_pauses_have_bounds(run: Run, argument: str, least: str, given: str) -> None:
    ran = run("agent", f"{argument}={given}")
    assert ran.status == 2
    assert f"{argument}: expected seconds from {least} to 3600, got '{given}'" in ran.err


@pytest.mark.parametrize("arguments", READING)
@pytest.mark.parametrize("path", ["ledger.sqlite", "no-such-folder/ledger.sqlite"])
def test_a_mistyped_path_makes_no_new_ledger(
    run: Run, tmp_path: Path, arguments: list[str], path: str
) -> None:
    ran = run(*arguments, "--ledger", f"sqlite:///{tmp_path}/{path}")
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.startswith(f"gpuspawner {arguments[0]}: there is no ledger at {tmp_path}/{path}")
    assert "--ledger or GPUSPAWNER_LEDGER_URL" in ran.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", READING)
def test_without_an_address_it_looks_where_the_hub_would(
    run: Run, tmp_path: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "there is no ledger at gpuspawner.sqlite;" in run(*arguments).err
    monkeypatch.setenv("GPUSPAWNER_LEDGER_URL", "sqlite:///elsewhere.sqlite")
    assert "there is no ledger at elsewhere.sqlite;" in run(*arguments).err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", READING)
def test_an_address_that_is_none(run: Run, arguments: list[str]) -> None:
    ran = run(*arguments, "--ledger", "mysql://ada:secret@db/gpus")
    assert ran.status == 1
    assert "sqlite:///FILE or postgresql://" in ran.err
    assert "secret" not in ran.err


@pytest.mark.parametrize("arguments", READING)
def test_a_ledger_that_is_away(run: Run, tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "gpuspawner.sqlite").write_bytes(b"no database " * 100)
    ran = run(*arguments)
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.startswith(f"gpuspawner {arguments[0]}: the ledger cannot be used now: ")
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("arguments", [["status"], ["leases", "--all"], ["--help"]])
def test_a_reader_that_has_gone_is_no_error_to_speak_of(
    broker: Broker, tmp_path: Path, arguments: list[str]
) -> None:
    """``gpuspawner leases | head -1``: a pipe that nobody reads any more."""
    reading, writing = os.pipe()
    os.close(reading)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "gpuspawner", *arguments],
            cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, check=False, text=True,
            env=environment,
        )  # fmt: skip
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.fixture
def docker_host(engine: OwnedEngine, monkeypatch: pytest.MonkeyPatch) -> OwnedEngine:
    """The engine that the command line finds."""
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    return engine


@pytest.mark.engine
def test_images_that_are_here_and_that_nobody_has(
    run: Run, docker_host: OwnedEngine, stub_image: str
) -> None:
    assert run("images", "pull", stub_image) == Ran(0, f"[1/1] {stub_image}: is here\n", "")

    nobodys = "127.0.0.1:1/no-such-image:1"
    ran = run("images", "pull", nobodys, stub_image, nobodys)

    assert ran.status == 1
    first, second = ran.out.splitlines()
    assert first.startswith(f"[1/2] {nobodys}: failed: ")
    assert "127.0.0.1:1" in first.split("failed: ")[1]
    assert second == f"[2/2] {stub_image}: is here"
    assert ran.err == "gpuspawner images: 1 of 2 images could not be had\n"


@pytest.mark.engine
def test_an_engine_that_is_away_is_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    ran = run("images", "pull", "x:1")
    assert ran.status == 1
    assert "[1/1] x:1: failed: the engine does not answer" in ran.out


@pytest.mark.engine
def test_a_pull_tells_of_its_progress(
    run: Run, engine: OwnedEngine, stub_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaultProxy(engine.url) as proxy:
        monkeypatch.setenv("DOCKER_HOST", proxy.url)
        with proxy.during("POST", "/images/create", status=200, body={"status": "Pulling"}):
            ran = run("images", "pull", stub_image, "--even-if-present")
            assert ran == Ran(0, f"[1/1] {stub_image}: . pulled\n", "")
        with proxy.during("POST", "/images/create", status=200, body={"error": "no space left"}):
            ran = run("images", "pull", stub_image, "--even-if-present")
            assert ran.status == 1
            assert "failed: no space left" in ran.out


def test_without_names_the_profiles_say_which(run: Run, ledger: Ledger) -> None:
    broker = Broker(ledger, "hub")
    broker.settle(T0)
    assert "has not published its profiles yet" in run("images", "pull").err
    broker.publish(sharing_policy(), "hub", T0)
    assert "no profile names images" in run("images", "pull").err
