"""A real browser: Debian's Chromium, driven by Playwright, with a fresh profile per test."""

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Error, Page, expect, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
_FLAGS = (
    "--no-sandbox",  # as root there is none
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
_PATIENCE_MS = 30_000

expect.set_options(timeout=_PATIENCE_MS)


def missing_for_browser() -> str | None:
    """Say in words what this machine lacks; None if nothing."""
    if not CHROMIUM.exists():
        return "Chromium is not installed (Debian package chromium)"
    return None


@contextmanager
def open_page(language: str = "en-GB", width: int = 1280, height: int = 800) -> Iterator[Page]:
    """Open a page in a browser of its own.

    One per test: Playwright's blocking calls keep a loop of theirs running in this thread, which
    no asynchronous test may meet.
    """
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(CHROMIUM), headless=True, args=list(_FLAGS)
        )
        try:
            context = browser.new_context(
                locale=language, viewport={"width": width, "height": height}
            )
            context.set_default_timeout(_PATIENCE_MS)
            yield context.new_page()
        finally:
            browser.close()


def screenshot_folder() -> Path:
    """Return where pictures go: ``GPUSPAWNER_SCREENSHOTS``, else a temporary folder."""
    named = os.environ.get("GPUSPAWNER_SCREENSHOTS")
    folder = Path(named) if named else Path(tempfile.gettempdir()) / "gpuspawner-screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def save_screenshot(page: Page, name: str, *, full_page: bool = True) -> Path:
    """Save a picture of the page for a person to look at, and return its path."""
    path = screenshot_folder() / f"{re.sub(r'[^0-9A-Za-z_.-]+', '-', name)}.png"
    page.screenshot(path=path, full_page=full_page)
    return path


def visit(page: Page, url: str) -> None:
    """Go to a page, again if the machine's network changed under the browser.

    Every container that starts or ends adds or removes a network interface; Chromium then gives
    up what it was loading from anywhere.
    """
    for is_last in (False, False, True):
        try:
            page.goto(url)
        except Error as error:
            if is_last or "ERR_NETWORK_CHANGED" not in str(error):
                raise
        else:
            return


def log_in(page: Page, url: str, name: str) -> None:
    """Log in at a hub of the rig, whose authenticator takes any password."""
    visit(page, f"{url}hub/login")
    page.fill("#username_input", name)
    page.fill("#password_input", "any")
    page.click("#login_submit")
    page.wait_for_url(re.compile(r"/hub/(home|spawn)|/user/"))
