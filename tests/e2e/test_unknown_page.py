"""The page of trouble in a browser: it fits, and it says what is not known."""

from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import expect

from gpuspawner.domain.devices import DeviceUUID
from gpuspawner.domain.reconciliation import EngineState, Stray
from tests.e2e.test_service import needs_browser, seen_by
from tests.rig.browser import save_screenshot
from tests.service.desk import Desk, busy_lab, make_desk

__all__ = ["make_desk"]


def trouble(desk: Desk) -> None:
    """An engine that fell silent, and a container that nobody knows on the first GPU."""
    now = datetime.now(UTC)
    answered = now - timedelta(minutes=4)
    for state in (
        EngineState(host_id="gpu1", engine="docker", answered_at=answered),
        EngineState(host_id="gpu1", engine="docker", silent_since=answered, detail="refused"),
    ):
        desk.broker.note_engine(state)
    devices = desk.inventory.look(now).devices
    job = Stray(run_id="c0ffee", name="old-training", devices=(DeviceUUID(devices[0].uuid),))
    desk.broker.report_strays("gpu1", "docker", [job], now)
    uuid = devices[2].instances[0].uuid
    desk.broker.force_end(
        desk.grant("ada", "mig-2g", "spare", minutes_ago=9).lease_id,
        f"the node with {uuid[:12]} will not come back", "admin:root", now,
    )  # fmt: skip
    desk.observe()


@pytest.mark.browser
def test_trouble_fits_in_the_dark_in_chinese_and_on_a_phone(make_desk):
    needs_browser()
    desk = make_desk()
    busy_lab(desk)
    trouble(desk)
    phone = {"width": 360, "height": 740}
    for name, settings in {
        "light": {},
        "phone-dark": {**phone, "dark": True},
        "phone-chinese": {**phone, "language": "zh-CN"},
    }.items():
        with seen_by(desk, **settings) as page:
            wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert wide <= 0, name
            save_screenshot(page, f"unknown-{name}")
    with seen_by(desk) as page:
        mine = page.get_by_role("region", name="My servers")
        expect(mine.get_by_text("It is not known whether it runs")).to_have_count(2)
        expect(mine.get_by_text("Not known", exact=True)).to_have_count(2)
        expect(page.get_by_role("alert")).to_contain_text("has not answered for 4 minutes")
        expect(mine).to_contain_text("root, an administrator, ended this session.")
        pool = page.get_by_role("region", name="The pool")
        expect(pool).to_contain_text("used by something outside this site's books")
        expect(pool).not_to_contain_text("old-training")
    with seen_by(desk, "admin") as page:
        expect(page.get_by_role("region", name="The pool")).to_contain_text("books: old-training")
