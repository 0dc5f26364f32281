"""The demo as a person meets it: ``tools.demo`` itself, a browser, and the real notebook image."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from playwright.sync_api import Page, expect

from tests.rig.browser import open_page, save_screenshot, visit
from tests.rig.engine import OwnedEngine
from tests.rig.hub import ROOT
from tests.rig.processes import descendants, kill_all, run_mark, wait_for

pytestmark = pytest.mark.browser

URL = "http://127.0.0.1:8000/"


@contextmanager
def running_demo(folder: Path, docker_host: str) -> Iterator[Callable[[], str]]:
    """Run the demo in a folder of its own; yields what it has printed so far."""
    printed = folder / "demo.log"
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("DOCKER_", "GPUSPAWNER_"))},
        "DOCKER_HOST": docker_host, "GPUSPAWNER_DEMO_FOLDER": str(folder / "site"),
        "PYTHONPATH": str(ROOT), **run_mark(),
    }  # fmt: skip
    with printed.open("wb") as log:
        demo = subprocess.Popen(
            [sys.executable, "-m", "tools.demo"], cwd=ROOT, env=environment,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    started = set()
    try:
        wait_for("the demo to answer", lambda: demo.poll() is not None or _answers(), 120)
        assert demo.poll() is None, printed.read_text()
        yield lambda: printed.read_text(errors="replace")
        started = set(descendants(demo.pid))
        # What Ctrl+C does: the whole group gets it.
        os.killpg(demo.pid, signal.SIGINT)
        assert demo.wait(60) in (0, -signal.SIGINT, 130)
    finally:
        if demo.poll() is None:
            started |= set(descendants(demo.pid))
            demo.kill()
            demo.wait()
        kill_all(started)


def _answers() -> bool:
    try:
        # The last part to be there is the agent's first report, which the service tells of.
        health = requests.get(f"{URL}services/gpu/api/health", timeout=5)
        return health.status_code == 200 and bool(health.json()["inventory"])
    except requests.RequestException:
        return False


def log_in(page: Page, name: str) -> None:
    visit(page, URL)
    page.fill("#username_input", name)
    page.fill("#password_input", "any")
    page.click("#login_submit")
    page.wait_for_url(re.compile(r"/hub/(home|spawn)|/user/"))


def choose(page: Page, profile: str) -> None:
    visit(page, f"{URL}hub/spawn")
    page.check(f"input[name=profile][value={profile}]")
    page.click("input[type=submit], button[type=submit]")


def stop_my_server(page: Page) -> None:
    visit(page, f"{URL}hub/home")
    page.click("#stop")
    expect(page.locator("#stop")).to_be_hidden(timeout=60_000)


@pytest.mark.engine
def test_a_student_gets_a_share_in_a_container_and_gives_it_back(
    engine: OwnedEngine, page: Page, tmp_path: Path
) -> None:
    with running_demo(tmp_path, engine.url) as printed:
        assert "the lab is simulated (no real hardware)" in printed()
        assert "Notebooks: containers of the Docker engine" in printed()
        log_in(page, "ada")
        visit(page, f"{URL}hub/spawn")
        expect(
            page.get_by_text("Simulated GPUs: no real hardware is behind these.")
        ).to_be_visible()
        save_screenshot(page, "form")

        choose(page, "share")
        page.wait_for_url(re.compile(r"spawn-pending"))
        expect(page.locator("#progress-message")).to_have_text(
            re.compile("You have: share of NVIDIA GeForce RTX 2080 Ti|Starting|Waiting")
        )
        save_screenshot(page, "progress")
        page.wait_for_url(re.compile(r"/user/ada/"), timeout=60_000)
        expect(page.locator(".jp-Launcher").first).to_be_visible(timeout=60_000)
        save_screenshot(page, "lab")
        assert variables_of(engine, "ada")["GPU_MEM_LIMIT"] == str(5 * 1024**3)

        visit(page, f"{URL}services/gpu/")
        expect(page.get_by_text("yours").first).to_be_visible()
        save_screenshot(page, "pool")
        stop_my_server(page)
        visit(page, f"{URL}services/gpu/")
        expect(page.get_by_text("4 of 4 free")).to_be_visible()
        with contextlib.closing(engine.client()) as client:
            assert client.containers(all=True) == []


@pytest.mark.engine
def test_the_same_in_chinese(engine: OwnedEngine, tmp_path: Path) -> None:
    with running_demo(tmp_path, engine.url), open_page(language="zh-CN") as page:
        log_in(page, "ben")
        visit(page, f"{URL}hub/spawn")
        expect(page.get_by_text("显存").first).to_be_visible()
        save_screenshot(page, "form-chinese")
        choose(page, "mig-2g")
        page.wait_for_url(re.compile(r"spawn-pending|/user/ben/"))
        save_screenshot(page, "progress-chinese")
        page.wait_for_url(re.compile(r"/user/ben/"), timeout=60_000)
        visit(page, f"{URL}services/gpu/")
        expect(page.locator("html")).to_have_attribute("lang", "zh-Hans")
        save_screenshot(page, "pool-chinese")
        stop_my_server(page)


def test_without_an_engine_notebooks_are_local_processes(page: Page, tmp_path: Path) -> None:
    with running_demo(tmp_path, "unix:///run/no-engine-here.sock") as printed:
        assert "no Docker engine answers here, so they run as local processes" in printed()
        log_in(page, "ada")
        choose(page, "whole")
        page.wait_for_url(re.compile(r"/user/ada/"), timeout=90_000)
        visit(page, f"{URL}services/gpu/")
        expect(page.get_by_text("yours").first).to_be_visible()
        log_in_as_second_and_be_refused(page)


def log_in_as_second_and_be_refused(page: Page) -> None:
    """ben asks for the H100 that ada has: the form names the rule, the number, what would work."""
    with page.context.browser.new_context() as other:  # type: ignore[union-attr]
        second = other.new_page()
        log_in(second, "ben")
        choose(second, "whole")
        alert = second.locator(".alert, .error").filter(has_text="Whole H100").first
        expect(alert).to_contain_text("The one place of “Whole H100” is in use.")
        expect(alert).to_contain_text("A100 instance 10 GB")
        save_screenshot(second, "refused")


def variables_of(engine: OwnedEngine, user: str) -> dict[str, Any]:
    """The environment of a person's one container, as its first process got it."""
    with contextlib.closing(engine.client()) as client:
        (found,) = client.containers(filters={"label": [f"org.gpuspawner.user={user}"]})
        call = client.exec_create(found["Id"], ["cat", "/proc/1/environ"])
        text = client.exec_start(call["Id"]).decode()
    return dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)
