"""The options form in a real browser, inside the hub's own page. No server is ever started: the
engine does not answer, so that each start ends as a refusal on this very page."""

import contextlib
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import expect

from gpuspawner.broker.broker import Broker
from gpuspawner.domain.devices import HostId
from gpuspawner.domain.policy import parse_policy
from gpuspawner.gpus.factory import open_inventory
from gpuspawner.ledger.store import Ledger
from tests.builders import claim
from tests.rig.browser import log_in, save_screenshot, visit

pytestmark = pytest.mark.browser

PROFILES = [
    {"name": "cpu", "title": "CPU only", "default": True,
     "description": "For writing, reading and small data. Starts at once."},
    {"name": "share", "title": "Small GPU share", "mode": "time-sliced", "memory": "5GiB",
     "description": "For the exercises of ML101.", "groups": ["ml101"],
     "images": ["pytorch:2.9-cuda13", "jax:0.8", "tensorflow:2.20"]},
    {"name": "mig-2g", "title": "A100 instance 10 GB", "mode": "mig", "instance": "2g.10gb",
     "description": "A partition of an A100 of your own."},
    {"name": "whole", "title": "Whole H100", "mode": "whole", "models": ["H100"],
     "description": "A GPU for yourself, for training runs."},
    {"name": "huge", "title": "Two GPUs with 140 GB each", "mode": "whole", "count": 2,
     "memory": "140GiB", "description": "For models that need a pair."},
]  # fmt: skip
DEVICES = [{"select": "2080", "modes": ["time-sliced", "whole"]}]
CONFIG = """
c.JupyterHub.spawner_class = "gpuspawner.spawners.docker.GPUDockerSpawner"
c.DockerSpawner.client_kwargs = {{"base_url": "unix://{folder}/no-engine.sock"}}
c.DockerSpawner.allowed_images = {{"Python": "stub:1", "R and Julia": "stub:2"}}
c.GPUSpawner.ledger_url = {ledger!r}
c.GPUSpawner.profiles = {profiles!r}
c.GPUSpawner.devices = {devices!r}
c.JupyterHub.load_groups = {{"ml101": {{"users": ["ada"]}}}}
"""

# The least contrast of any visible text to what is painted behind it (WCAG 2.2, 1.4.3).
CONTRAST = """() => {
  const rgba = text => {
    const n = text.match(/[\\d.]+/g).map(Number);
    return text.startsWith("color(")
      ? [n[0] * 255, n[1] * 255, n[2] * 255, n[3] ?? 1]
      : [n[0], n[1], n[2], n[3] ?? 1];
  };
  const over = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3]));
  const behind = element => {
    const layers = [];
    for (let e = element; e; e = e.parentElement)
      layers.push(rgba(getComputedStyle(e).backgroundColor));
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const light = color => {
    const [r, g, b] = color.map(v => {
      v /= 255;
      return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  for (const e of document.querySelectorAll(".gpuspawner-form *")) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    if (!own || !e.checkVisibility() || e.closest("style, option")) continue;
    const back = behind(e);
    const a = light(over(rgba(getComputedStyle(e).color), back)), b = light(back);
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.textContent.trim()]);
  }
  return found.sort((one, other) => one[0] - other[0]);
}"""


@pytest.fixture
def books(tmp_path):
    """The hub's books, on which a mixed lab was just observed; nothing is taken."""
    url = f"sqlite:///{tmp_path}/ledger.sqlite"
    with contextlib.closing(Ledger(url)) as ledger:
        broker = Broker(ledger, actor="agent")
        with contextlib.closing(open_inventory(HostId("lab"), "mixed-lab")) as inventory:
            now = datetime.now(UTC)
            # As if just seen for as long as the test lasts: shares need a fresh look.
            broker.observe(inventory.look(now + timedelta(minutes=5)), now)
            yield broker


@pytest.fixture
def hub(make_hub, books, tmp_path):
    return make_hub(
        CONFIG.format(
            folder=tmp_path,
            ledger=books.ledger.url.render_as_string(),
            profiles=PROFILES,
            devices=DEVICES,
        )
    )


def take(broker, *names):
    policy = parse_policy(PROFILES, DEVICES)
    now = datetime.now(UTC)
    broker.publish(policy, "hub", now)
    for at, name in enumerate(names):
        profile = next(each for each in policy.profiles if each.name == name)
        broker.request(claim("ben", profile, f"s{at}"), now)


def open_form(page, hub, user="ada"):
    log_in(page, hub.url, user)
    visit(page, f"{hub.url}hub/spawn")
    card = page.locator(".gpuspawner-card")
    expect(card.first).to_be_visible()
    if not page.get_by_text("Free counts").count():
        page.reload()  # the hub opened its books at that first look
    return card


@pytest.fixture
def english(page, hub, books):
    open_form(page, hub)
    return page


def options_of(hub, user="ada"):
    answer = hub.api("GET", f"/users/{user}?include_stopped_servers")
    return answer.body["servers"][""]["user_options"]


def test_cards_show_what_is_free(english):
    page = english
    card = page.locator(".gpuspawner-card")
    expect(card).to_have_count(5)
    expect(card.nth(0)).to_contain_text("Always available")
    expect(card.nth(1)).to_contain_text("4 of 4 free")
    expect(page.get_by_label("CPU only", exact=True)).to_be_checked()
    expect(page.get_by_label("Two GPUs with 140 GB each", exact=True)).to_be_disabled()
    expect(page.get_by_text("Simulated GPUs")).to_be_visible()
    save_screenshot(page, "form-light")


def test_a_choice_by_keyboard_alone(english, hub):
    page = english
    radio = page.get_by_label("CPU only", exact=True)
    for _ in range(20):
        page.keyboard.press("Tab")
        if radio.evaluate("e => e === document.activeElement"):
            break
    expect(radio).to_be_focused()
    page.keyboard.press("ArrowDown")
    share = page.get_by_label("Small GPU share", exact=True)
    expect(share).to_be_focused()
    expect(share).to_be_checked()
    outline = (
        page.locator(".gpuspawner-card-body")
        .nth(1)
        .evaluate("e => getComputedStyle(e).outlineStyle + getComputedStyle(e).outlineWidth")
    )
    assert outline == "solid3px"
    page.keyboard.press("Tab")
    images = page.get_by_label("Notebook image (Small GPU share)")
    expect(images).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(images).to_have_value("jax:0.8")
    save_screenshot(page, "form-keyboard")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Start")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".spawn-error-msg")).to_contain_text("does not answer right now")
    assert options_of(hub) == {"profile": "share", "image": "jax:0.8"}
    # What was chosen is still there, to try again.
    expect(page.get_by_label("Small GPU share", exact=True)).to_be_checked()
    expect(page.get_by_label("Notebook image (Small GPU share)")).to_have_value("jax:0.8")
    save_screenshot(page, "form-refused")


def test_only_the_chosen_cards_images_are_shown_and_sent(english, hub):
    page = english
    selects = page.locator(".gpuspawner-card select:visible")
    expect(selects).to_have_count(1)
    page.locator(".gpuspawner-card").nth(1).click(position={"x": 300, "y": 20})
    expect(selects).to_have_count(1)
    selects.select_option("tensorflow:2.20")
    page.locator(".gpuspawner-card").nth(3).click(position={"x": 100, "y": 50})
    expect(page.get_by_label("Whole H100", exact=True)).to_be_checked()
    selects.select_option("R and Julia")
    page.get_by_role("button", name="Start").click()
    expect(page.locator(".spawn-error-msg")).to_be_visible()
    assert options_of(hub) == {"profile": "whole", "image": "R and Julia"}


def test_a_full_card_says_what_happens_and_can_be_chosen(hub, books, page):
    take(books, "whole", "mig-2g", "mig-2g", "mig-2g", "share")
    open_form(page, hub)
    whole = page.locator(".gpuspawner-card").nth(3)
    expect(whole).to_contain_text("Starting now would be refused; others are free: “CPU only”")
    page.get_by_label("Whole H100", exact=True).check()
    save_screenshot(page, "form-none-free")


def test_a_link_preselects_and_starts_nothing(hub, page):
    log_in(page, hub.url, "ada")
    visit(page, f"{hub.url}hub/spawn?opt-profile=share&opt-image=jax:0.8")
    expect(page.get_by_label("Small GPU share", exact=True)).to_be_checked()
    expect(page.get_by_label("Notebook image (Small GPU share)")).to_have_value("jax:0.8")
    visit(page, f"{hub.url}hub/spawn?opt-profile=%3Cscript%3Ealert(1)%3C/script%3E")
    expect(page.get_by_label("CPU only", exact=True)).to_be_checked()


def test_texts_stand_out_in_both_themes_and_fit_a_phone(english, books):
    page = english
    take(books, "whole")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.reload()
        page.get_by_label("Small GPU share", exact=True).check()
        assert page.evaluate("document.documentElement.dataset.bsTheme") == scheme
        save_screenshot(page, f"form-{scheme}-chosen")
        contrasts = page.evaluate(CONTRAST)
        assert len(contrasts) > 20
        assert contrasts[0][0] >= 4.5, contrasts[0]
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 360, "height": 740})
    page.reload()
    page.get_by_label("Small GPU share", exact=True).check()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    for box in page.locator(".gpuspawner-card, .gpuspawner-card select:visible").all():
        place = box.bounding_box()
        assert place["x"] >= 0
        assert place["x"] + place["width"] <= 360
    save_screenshot(page, "form-phone")


def test_without_javascript_and_in_chinese(english, hub, books):
    take(books, "whole")
    context = english.context.browser.new_context(
        locale="zh-CN",
        java_script_enabled=False,
        viewport={"width": 1280, "height": 800},
        storage_state=english.context.storage_state(),
    )
    page = context.new_page()
    visit(page, f"{hub.url}hub/spawn")
    form = page.locator(".gpuspawner-form")
    expect(form).to_have_attribute("lang", "zh-Hans")
    expect(page.locator(".gpuspawner-card").nth(0)).to_contain_text("随时可用")
    assert "would be" not in form.inner_text()
    save_screenshot(page, "form-chinese")
    page.get_by_label("Small GPU share", exact=True).check()
    selects = page.locator(".gpuspawner-card select:visible")
    expect(selects).to_have_count(1)
    selects.select_option("jax:0.8")
    page.get_by_role("button", name="Start").click()
    expect(page.locator(".spawn-error-msg")).to_be_visible()
    assert options_of(hub) == {"profile": "share", "image": "jax:0.8"}


def test_without_books_all_can_still_be_chosen(make_hub, page, tmp_path):
    config = CONFIG.format(
        folder=tmp_path, ledger=f"sqlite:///{tmp_path}/no/such/folder/ledger.sqlite",
        profiles=PROFILES, devices=DEVICES,
    )  # fmt: skip
    hub = make_hub(config)
    log_in(page, hub.url, "ada")
    visit(page, f"{hub.url}hub/spawn")
    expect(page.get_by_text("is not known right now")).to_be_visible()
    expect(page.locator("input[name=profile]:enabled")).to_have_count(5)
    save_screenshot(page, "form-no-ledger")
