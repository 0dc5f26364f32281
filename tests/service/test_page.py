"""The page as HTML: what it says to whom, in which language, and where its links go."""

from html.parser import HTMLParser
from itertools import pairwise

import pytest

from gpuspawner.broker.broker import Broker
from gpuspawner.ledger.store import LedgerAwayError
from gpuspawner.service.routes import STATIC
from tests.builders import ML_SHARE, SMALL_MIG, T0, after, device, inventory
from tests.service.conftest import Site


class Page(HTMLParser):
    """Just enough of a reader: text, links, and what holds what."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.links: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "a":
            self.links.append(dict(attrs).get("href") or "")

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


async def page(site: Site, who: str = "ada", **headers: str) -> Page:
    return Page((await site.ask("", who, headers=headers)).text)


async def test_my_servers_with_slices_state_and_the_way_in(site):
    site.grant("ada")
    site.grant("ada", ML_SHARE, "thesis")
    seen = await page(site)
    for words in (
        "Default server", "thesis", "Running", "whole Tesla T4, 16 GiB", "share of Tesla T4, 4 GiB",
        "for 1 hour", "since Sep 1, 2026 08:01 UTC",
    ):  # fmt: skip
        assert words in seen.text
    assert "/hub/user/ada/" in seen.links
    assert "/hub/user/ada/thesis/" in seen.links


async def test_without_a_server_it_says_what_to_do_next(site):
    seen = await page(site)
    assert "You have no server with a GPU." in seen.text
    assert "/hub/spawn" in seen.links


async def test_the_last_ends_say_why(site):
    site.end(site.grant("ada"))
    assert "The server was stopped." in (await page(site)).text


async def test_the_pool_names_ones_own_and_hides_others(site):
    site.grant("ada")
    site.grant("ben", SMALL_MIG)
    ada, admin = await page(site), await page(site, "admin")
    assert "yours · Default server" in ada.text
    assert "busy" in ada.text
    assert "ben" not in ada.text.split()
    assert "busy · ben" in admin.text
    assert "busy · ada" in admin.text


async def test_shares_show_the_room_that_is_left(site):
    site.grant("ada", ML_SHARE)
    text = (await page(site)).text
    assert "Share, 4 GiB yours" in text
    assert "Room for shares, 11.5 GiB free" in text
    assert "512 MiB are kept back" in text


async def test_trouble_is_said_with_the_operators_note(site):
    site.broker.cordon("GPU-a", "new <cooler> on Friday", "user:admin", T0)
    answer = await site.ask("", "ada")
    assert "taken out of use by the staff: new &lt;cooler&gt; on Friday" in answer.text


@pytest.mark.proves("P5")
async def test_unknown_readings_are_a_dash(make_site):
    site = await make_site(filled=False)
    bare = device("x", load=type(device("x").load)(), memory_mib=None)
    Broker(site.ledger, "agent").observe(inventory(bare, observed_at=after(3590)), after(3590))
    text = (await page(site)).text
    assert "Memory in use —" in text
    assert "Load —" in text
    assert "#0 · —" in text


async def test_a_simulated_lab_says_so_in_one_line(site):
    assert "This is a simulated lab" in (await page(site)).text


async def test_a_silent_agent_is_said_with_what_it_means(site):
    site.now[0] = after(3590 + 120)
    text = (await page(site)).text
    assert "No report from the host lab for 2 minutes" in text
    assert "Running servers go on" in text


async def test_no_agent_yet_is_said_with_what_it_means(make_site):
    site = await make_site(filled=False)
    text = (await page(site)).text
    assert "No host has reported its GPUs yet" in text


async def test_hardware_that_cannot_be_asked_is_said(site):
    site.broker.observe(
        inventory(device("a"), observed_at=after(3595), trouble="no driver"), after(3595)
    )
    assert "The host lab cannot ask its GPUs right now" in (await page(site)).text


async def test_a_ledger_that_is_away_is_said_with_what_it_means(site, monkeypatch):
    def away(*_arguments):
        raise LedgerAwayError("locked")

    monkeypatch.setattr(site.service.books, "_ask", away)
    answer = await site.ask("", "ada")
    assert (answer.status, answer.headers["Retry-After"]) == (503, "10")
    text = Page(answer.text).text
    assert "does not answer right now" in text
    assert "Running servers go on" in text
    assert "You have no server" not in text
    assert "—" not in text


async def test_it_speaks_chinese(site):
    site.grant("ada", ML_SHARE)
    seen = await page(site, **{"Accept-Language": "zh-CN,zh;q=0.9"})
    assert ("html", {"lang": "zh-Hans"}) in seen.tags
    assert "我的服务器" in seen.text
    # Of our own words none is left in English; names and units are what they are.
    for word in ("server", "busy", "free", "yours", "Load", "since"):
        assert word not in seen.text


async def test_links_start_at_the_hubs_own_address(make_site):
    site = await make_site(
        JUPYTERHUB_BASE_URL="/teaching/",
        JUPYTERHUB_HOST="https://hub.example.org",
        JUPYTERHUB_SERVICE_PREFIX="/teaching/services/gpu/",
    )
    site.grant("ada")
    seen = await page(site)
    assert "https://hub.example.org/teaching/hub/spawn" in seen.links
    assert "https://hub.example.org/teaching/hub/user/ada/" in seen.links
    assert "/teaching/services/gpu/" in seen.links
    styles = [attrs["href"] for tag, attrs in seen.tags if attrs.get("rel") == "stylesheet"]
    assert all(str(style).startswith("/teaching/services/gpu/static/") for style in styles)
    login = await site.ask("")
    assert login.headers["Location"].startswith(
        "https://hub.example.org/teaching/hub/api/oauth2/authorize?"
    )


async def test_names_of_people_cannot_become_markup(make_site):
    site = await make_site()
    evil = '"><script>alert(1)</script>'
    site.hub.tokens["evil"] = {**site.hub.tokens["ada"], "name": evil}
    site.grant(evil, server="<img src=x>")
    for who in ("evil", "admin"):
        text = (await site.ask("", who)).text
        assert "<script" not in text
        assert "<img" not in text


async def test_it_has_landmarks_and_headings_in_order(site):
    site.grant("ada")
    site.end(site.grant("ada", server="old"))
    seen = await page(site)
    tags = [tag for tag, _ in seen.tags]
    for landmark in ("header", "nav", "main", "footer"):
        assert landmark in tags
    levels = [int(tag[1]) for tag in tags if tag in ("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert tags.count("table") == tags.count("caption") == 2
    assert all(attrs.get("scope") for tag, attrs in seen.tags if tag == "th")
    assert "script" not in tags
    assert not [attrs for _, attrs in seen.tags if "style" in attrs]


async def test_the_style_sheets_are_served_and_may_be_kept(site):
    for name in ("page.css", "bars.css"):
        answer = await site.ask(f"static/{name}?v=1")
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith("text/css")
        assert "max-age" in answer.headers["Cache-Control"]
    for path in ("static/../run.py", "static/%2e%2e/run.py", "static/nothing.css"):
        assert (await site.ask(path)).status in (403, 404)


def test_there_is_a_class_for_every_step_of_a_bar():
    rules = (STATIC / "bars.css").read_text()
    for step in range(1, 101):
        assert f".w{step}{{flex-grow:{step}}}" in rules


# Log-in


async def test_a_stranger_is_sent_to_the_log_in_and_comes_back(site):
    site.hub.codes["code"] = "ada"
    first = await site.ask("")
    assert first.status == 302
    location = first.headers["Location"]
    state = dict(item.split("=", 1) for item in location.partition("?")[2].split("&"))["state"]
    cookie = first.headers["Set-Cookie"].partition(";")[0]
    back = await site.ask(f"oauth_callback?code=code&state={state}", headers={"Cookie": cookie})
    assert (back.status, back.headers["Location"]) == (302, "/services/gpu/")
    cookies = "; ".join(
        item.partition(";")[0] for item in back.headers.getall("Set-Cookie") if "HttpOnly" in item
    )
    assert (await site.ask("", headers={"Cookie": cookies})).status == 200


async def test_a_log_in_that_nobody_began_is_refused_as_a_page(site):
    answer = await site.ask("oauth_callback?code=code&state=guessed")
    assert answer.status == 403
    assert "This did not work" in answer.text


async def test_a_second_window_that_logged_in_meanwhile_just_goes_on(site):
    answer = await site.ask("oauth_callback?code=x&state=old", headers=site.cookie("ada"))
    assert (answer.status, answer.headers["Location"]) == (302, "/services/gpu/")


# A browser's requests (hub facts H5)


@pytest.mark.parametrize("mode", ["cors", "same-origin"])
async def test_a_fetch_by_cookie_needs_the_pages_own_value_also_for_get(site, mode):
    logged_in = site.cookie("ada")
    opened = await site.ask("", headers=logged_in)
    value = opened.headers["Set-Cookie"].partition(";")[0].partition("=")[2]
    both = {"Cookie": f"{logged_in['Cookie']}; _xsrf={value}", "Sec-Fetch-Mode": mode}
    answer = await site.ask("api/me", headers={**logged_in, "Sec-Fetch-Mode": mode})
    assert (answer.status, answer.body["error"]["code"]) == (403, "xsrf")
    assert (await site.ask("api/me", headers={**both, "X-XSRFToken": "guessed"})).status == 403
    assert (await site.ask("api/me", headers={**both, "X-XSRFToken": value})).status == 200
    assert (await site.ask(f"api/me?_xsrf={value}", headers=both)).status == 200
    # A value of somebody else's page is none of this session's.
    other = {**both, "Cookie": both["Cookie"].replace(logged_in["Cookie"].split("; ")[0],
             site.cookie("ben")["Cookie"])}  # fmt: skip
    assert (await site.ask("api/me", headers={**other, "X-XSRFToken": value})).status == 403


async def test_a_token_needs_no_such_value(site):
    headers = {"Sec-Fetch-Mode": "cors", "Authorization": "token ada"}
    assert (await site.ask("api/me", headers=headers)).status == 200


async def test_a_token_in_the_address_is_none(site):
    assert (await site.ask("api/me?token=ada")).status == 401


async def test_a_revoked_token_is_out_within_the_cache_time(site):
    headers = site.cookie("ada")
    assert (await site.ask("", headers=headers)).status == 200
    del site.hub.tokens["ada"]
    site.service.auth.cache.clear()  # what half a minute does
    assert (await site.ask("", headers=headers)).status == 302


@pytest.mark.proves("P9")
async def test_no_log_line_has_a_secret(site, caplog):
    caplog.set_level("DEBUG", "gpuspawner")
    caplog.set_level("INFO", "tornado")
    await site.ask("api/me", "ada-canary")
    await site.ask("oauth_callback?code=canary-code&state=canary-state-x")
    await site.ask("api/me?token=canary-token")
    own = [record.getMessage() for record in caplog.records if record.name != "tornado.application"]
    assert not [line for line in own if "canary" in line]
