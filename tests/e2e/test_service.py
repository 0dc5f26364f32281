"""The service under a real hub: log-in, pages in two languages, and a hub that it never stops."""

import re
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.conftest import lacking
from tests.rig.browser import log_in, missing_for_browser, open_page, save_screenshot, visit
from tests.service.desk import Desk, busy_lab, make_desk

__all__ = ["make_desk"]


def needs_browser() -> None:
    if missing := missing_for_browser():
        lacking(missing)


@contextmanager
def seen_by(desk: Desk, user: str = "ada", *, dark: bool = False, **settings: Any):
    """A person's browser on the page; whatever it complains about fails the test."""
    with open_page(**settings) as hub_page:
        log_in(hub_page, desk.hub.url, user)
        page = hub_page.context.new_page()
        hub_page.close()  # the hub's own pages are not ours, nor what they say late
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("requestfailed", lambda request: complaints.append(request.url))
        if dark:
            page.emulate_media(color_scheme="dark")
        visit(page, desk.page_url)
        expect(page.get_by_role("heading", level=2).first).to_be_visible()
        yield page
        assert complaints == []


@pytest.mark.browser
def test_ada_logs_in_and_sees_her_servers_and_the_pool(make_desk):
    needs_browser()
    desk = make_desk()
    busy_lab(desk)
    with seen_by(desk) as page:
        mine = page.get_by_role("region", name="My servers")
        expect(mine.get_by_role("heading", name="thesis")).to_be_visible()
        expect(mine).to_contain_text("instance 2g.10gb of NVIDIA A100-SXM4-40GB, 9.6 GiB")
        expect(mine).to_contain_text("The server ended by itself (exit code 137).")
        pool = page.get_by_role("region", name="The pool")
        expect(pool).to_contain_text("taken out of use by the staff: new cooler on Friday")
        expect(pool).not_to_contain_text(re.compile(r"\bcho\b"))
        save_screenshot(page, "service-light")
        # A script of this page may ask the API, with the value that only this page has.
        ask = "headers => fetch('api/me', {headers}).then(answer => answer.json())"
        value = next(x["value"] for x in page.context.cookies() if x["name"] == "_xsrf")
        assert page.evaluate(ask, {"X-XSRFToken": value})["user"] == "ada"
        page.get_by_role("link", name="Home").click()
        expect(page).to_have_url(f"{desk.hub.url}hub/home")


@pytest.mark.browser
def test_an_admin_sees_who_holds_what(make_desk):
    needs_browser()
    desk = make_desk()
    busy_lab(desk)
    with seen_by(desk, "admin") as page:
        pool = page.get_by_role("region", name="The pool")
        expect(pool).to_contain_text("busy · ada/thesis")
        expect(pool).to_contain_text("busy · cho/big")
        save_screenshot(page, "service-admin")


@pytest.mark.browser
def test_it_fits_in_the_dark_in_chinese_and_on_a_phone(make_desk):
    needs_browser()
    desk = make_desk()
    busy_lab(desk)
    phone = {"width": 360, "height": 740}
    for name, settings in {
        "dark": {"dark": True},
        "chinese": {"language": "zh-CN"},
        "phone": phone,
        "phone-chinese-dark": {**phone, "language": "zh-CN", "dark": True},
    }.items():
        with seen_by(desk, **settings) as page:
            wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert wide <= 0, name
            save_screenshot(page, f"service-{name}")


@pytest.mark.browser
def test_before_anything_has_begun_the_page_says_what_to_do(make_desk):
    needs_browser()
    desk = make_desk(empty=True)
    with seen_by(desk) as page:
        expect(page.get_by_text("You have no server with a GPU.")).to_be_visible()
        expect(page.get_by_role("alert")).to_contain_text("No host has reported its GPUs yet")
        save_screenshot(page, "service-empty")
        start = page.get_by_role("main").get_by_role("link", name="Start a server")
        expect(start).to_have_attribute("href", "/hub/spawn")


@pytest.mark.browser
def test_when_the_ledger_goes_away_the_page_says_so_and_comes_back(make_desk):
    needs_browser()
    desk = make_desk()
    busy_lab(desk)
    with seen_by(desk) as page:
        folder = Path(desk.ledger.url.database or "").parent
        hidden = folder / "ledger.sqlite.hidden"
        desk.ledger.close()
        page.goto("about:blank")
        (folder / "ledger.sqlite").rename(hidden)
        (folder / "ledger.sqlite").mkdir()
        desk.hub.restart()
    with open_page() as page:
        log_in(page, desk.hub.url, "ada")
        visit(page, desk.page_url)
        expect(page.get_by_role("alert")).to_contain_text("does not answer right now")
        save_screenshot(page, "service-ledger-away")
        (folder / "ledger.sqlite").rmdir()
        hidden.rename(folder / "ledger.sqlite")
        visit(page, desk.page_url)
        expect(page.get_by_role("heading", name="My servers")).to_be_visible()


@pytest.mark.browser
def test_behind_a_base_url_log_in_and_links_work(make_desk):
    needs_browser()
    desk = make_desk(start=False)
    hub = desk.hub
    hub.url += "teaching/"
    hub.write_config(f"c.JupyterHub.bind_url = {hub.url!r}\n{desk.config}")
    hub.start()
    desk.grant("ada", "mig-2g")
    with seen_by(desk) as page:
        expect(page.get_by_role("heading", name="Default server")).to_be_visible()
        link = page.get_by_role("link", name="Open Default server")
        expect(link).to_have_attribute("href", "/teaching/hub/user/ada/")
