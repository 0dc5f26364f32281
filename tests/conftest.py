"""Fixtures of the rig. What a machine lacks fails a test in CI and skips it elsewhere."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from playwright.sync_api import Page

sys.path.insert(0, str(Path(__file__).parents[1]))  # `tests.rig` and `tools`, however we were run

from tests.rig import images as rig_images
from tests.rig.browser import missing_for_browser, open_page, save_screenshot
from tests.rig.engine import OwnedEngine, missing_for_engine
from tests.rig.hub import HubProcess
from tests.rig.postgres import PostgresServer, missing_for_postgres
from tests.rig.processes import end_orphans
from tools.notebook_image.build import ImageError

pytest_plugins = ["tests.guarantees"]
_FAILED = pytest.StashKey[bool]()


def pytest_sessionstart() -> None:
    """Clear what a killed run left, and end in order when told to end (as `timeout` does)."""
    end_orphans()
    signal.signal(signal.SIGTERM, lambda *_: pytest.exit("told to end (SIGTERM)", 1))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take minutes, then whole sites: the short ones fill the end."""

    def rank(item: pytest.Item) -> int:
        if item.path.name.startswith(("test_soak", "test_kill_points")):
            return 0
        return 1 if item.path.parent.name == "e2e" else 2

    items.sort(key=rank)


def lacking(reason: str) -> NoReturn:
    """End a test for want of a real part: nothing is skipped in CI."""
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def images() -> rig_images.Images:
    """Names of the images that every engine of the tests has."""
    return rig_images.names()


@pytest.fixture(scope="session")
def notebook_image(images: rig_images.Images) -> str:
    """The ordinary notebook image: JupyterLab, ready in seconds."""
    return images.notebook


@pytest.fixture(scope="session")
def stub_image(images: rig_images.Images) -> str:
    """A stand-in single-user server, ready in a moment: for tests of many servers."""
    return images.stub


@pytest.fixture(scope="session")
def engine_seed() -> Path:
    """The kept data folder from which an engine has its images at once."""
    reason = missing_for_engine()
    if reason:
        lacking(reason)
    try:
        return rig_images.seed()
    except ImageError as error:
        lacking(str(error))


@pytest.fixture(scope="session")
def session_engine(engine_seed: Path) -> Iterator[OwnedEngine]:
    """One engine for the whole run; a test takes `engine`, which leaves it clean."""
    with OwnedEngine(seed=engine_seed) as engine:
        yield engine


@pytest.fixture
def engine(session_engine: OwnedEngine) -> Iterator[OwnedEngine]:
    """The run's engine, running and empty; the test may freeze, kill or stop it."""
    session_engine.reset()
    yield session_engine
    session_engine.reset()


@pytest.fixture
def make_engine(engine_seed: Path) -> Iterator[Callable[..., OwnedEngine]]:
    """Make further engines, e.g. ``make_engine(hook=False, live_restore=True)``; started."""
    with contextlib.ExitStack() as stack:

        def make(**settings: bool) -> OwnedEngine:
            return stack.enter_context(OwnedEngine(seed=engine_seed, **settings))

        yield make


@pytest.fixture
def make_hub(tmp_path: Path) -> Iterator[Callable[..., HubProcess]]:
    """Make a hub from configuration text: ``make_hub(text, hub_ip=gateway, start=True, ...)``."""
    with contextlib.ExitStack() as stack:
        count = 0

        def make(config: str = "", *, start: bool = True, **settings: object) -> HubProcess:
            nonlocal count
            count += 1
            hub = HubProcess(config, tmp_path / f"hub{count}", **settings)  # type: ignore[arg-type]
            stack.callback(hub.close)
            if start:
                hub.start()
            return hub

        yield make


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL server for the whole run (no fsync)."""
    reason = missing_for_postgres()
    if reason:
        lacking(reason)
    with PostgresServer() as server:
        yield server


@pytest.fixture
def make_database(postgres: PostgresServer) -> Iterator[Callable[[], str]]:
    """Make an empty PostgreSQL database; returns its SQLAlchemy URL."""
    made: list[str] = []

    def make() -> str:
        made.append(postgres.make_database())
        return made[-1]

    yield make
    for url in made:
        postgres.drop_database(url)


@pytest.fixture
def postgres_url(make_database: Callable[[], str]) -> str:
    """The SQLAlchemy URL of an empty PostgreSQL database of this test."""
    return make_database()


@pytest.fixture
def page(request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page of a real browser with a fresh profile; for tests that are not asynchronous."""
    reason = missing_for_browser()
    if reason:
        lacking(reason)
    with open_page() as opened:
        yield opened
        if request.node.stash.get(_FAILED, False):
            save_screenshot(opened, f"failed-{request.node.name}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    """Show what the hubs said when a test failed."""
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
        for hub in HubProcess.live:
            report.sections.append((f"log of the hub at {hub.url}", hub.log_tail()))
    return report
