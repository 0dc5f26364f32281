"""What changes something is believed neither to a cookie alone nor to what is remembered (S2, S3).

The service's routes are judged by one base, here held against routes of the tests.
"""

import pytest
from tornado.httputil import HTTPHeaders
from tornado.web import create_signed_value

from gpuspawner.service.auth import is_own_page
from tests.service.conftest import Answer, Site
from tests.service.doubles import user_model
from tests.service.writing import ADMIN, OWN, STREAM, with_writing

ELSEWHERE = "https://elsewhere.example"


@pytest.fixture
def changes() -> list[str]:
    """What the routes of the tests were let change."""
    return []


@pytest.fixture
async def site(make_site, changes) -> Site:
    return await make_site(routes=with_writing(changes))


async def write(site: Site, headers: dict[str, str], **settings) -> Answer:
    return await site.ask(OWN, method="POST", headers=headers, **settings)


def without(headers: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in names}


# The XSRF value


async def test_a_page_of_ours_may_write_in_each_way_that_a_page_has(site, changes):
    page = await site.page("ada")
    bare = without(page, "X-XSRFToken")
    value = page["X-XSRFToken"]
    assert (await write(site, page)).status == 200
    assert (await site.ask(f"{OWN}?_xsrf={value}", method="POST", headers=bare)).status == 200
    assert (await write(site, bare, data={"_xsrf": value})).status == 200
    form = {**bare, "Sec-Fetch-Mode": "navigate"}
    assert (await write(site, form, data={"_xsrf": value})).status == 200
    assert len(changes) == 4


async def spoiled(site: Site, how: str) -> dict[str, str]:
    """The headers of a script in ada's page, with one thing wrong."""
    page = await site.page("ada")
    session = page["Cookie"].partition(";")[0]
    if how == "missing":
        return without(page, "X-XSRFToken")
    if how == "no-cookie":
        return {**page, "Cookie": session}
    if how == "empty":
        return {**page, "X-XSRFToken": "", "Cookie": f"{session}; _xsrf="}
    if how == "stale":  # of her log-in before this one
        site.hub.tokens["before"] = user_model("ada")
        before = await site.page("before")
        value = before["X-XSRFToken"]
        return {**page, "X-XSRFToken": value, "Cookie": f"{session}; _xsrf={value}"}
    if how == "others":
        value = (await site.page("ben"))["X-XSRFToken"]
        return {**page, "X-XSRFToken": value, "Cookie": f"{session}; _xsrf={value}"}
    if how == "unsigned":  # what a script of a page at another path may plant as a cookie
        return {**page, "X-XSRFToken": "planted", "Cookie": f"{session}; _xsrf=planted"}
    if how == "wrong-path":  # the hub's or a notebook's own, signed with another key
        value = create_signed_value(b"of the hub", "_xsrf", ":ada").decode()
        return {**page, "X-XSRFToken": value, "Cookie": f"{page['Cookie']}; _xsrf={value}"}
    assert how == "another-session"  # logged out and in again at the hub
    return {**page, "Cookie": f"{page['Cookie']}; jupyterhub-session-id=later"}


SPOILED = (
    "missing", "no-cookie", "empty", "stale", "others", "unsigned", "wrong-path", "another-session",
)  # fmt: skip


@pytest.mark.proves("S3")
@pytest.mark.parametrize("how", SPOILED)
@pytest.mark.parametrize("mode", ["cors", "navigate", "same-origin", "websocket", None])
async def test_without_the_value_of_this_page_nothing_changes(site, changes, how, mode):
    headers = await spoiled(site, how)
    headers = without(headers, "Sec-Fetch-Mode") | ({"Sec-Fetch-Mode": mode} if mode else {})
    answer = await write(site, headers)
    assert (answer.status, answer.body["error"]["code"]) == (403, "xsrf")
    assert (await site.ask(STREAM, headers=headers)).status == 403
    assert changes == []


@pytest.mark.proves("S3")
async def test_the_value_of_before_is_good_again_in_no_other_log_in(site, changes):
    """Logging out at the hub changes the session; the page must be opened again."""
    page = await site.page("ada")
    site.hub.tokens["new"] = user_model("ada")
    cookie = create_signed_value(site.secret, "service-gpu", "new").decode()
    value = page["X-XSRFToken"]
    answer = await write(site, {**page, "Cookie": f"service-gpu={cookie}; _xsrf={value}"})
    assert answer.status == 403
    assert (await write(site, await site.page("new"))).status == 200
    assert changes == ["ada POST own"]


# Where it comes from


@pytest.mark.proves("S3")
@pytest.mark.parametrize(
    "foreign",
    [
        {"Origin": ELSEWHERE, "Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://gpu.127.0.0.1", "Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": ELSEWHERE},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://127.0.0.1:none"},
    ],
)
async def test_a_page_of_another_origin_changes_nothing_and_opens_no_stream(site, changes, foreign):
    page = without(await site.page("ada"), "Origin", "Sec-Fetch-Site")
    answer = await write(site, page | foreign)
    assert (answer.status, answer.body["error"]["code"]) == (403, "xsrf")
    assert (await site.ask(STREAM, headers=page | foreign)).status == 403
    assert changes == []


async def test_a_site_without_tls_sends_no_fetch_metadata_and_still_works(site, changes):
    page = without(await site.page("ada"), "Sec-Fetch-Site", "Sec-Fetch-Mode")
    assert (await write(site, page)).status == 200
    assert (await site.ask(STREAM, headers=without(page, "Origin"))).status == 200
    assert len(changes) == 1


@pytest.mark.parametrize(
    ("headers", "own"),
    [
        ({}, True),
        ({"Origin": "https://hub.example.org"}, True),
        ({"Origin": "https://hub.example.org:443"}, True),
        ({"Origin": "https://HUB.example.org"}, True),
        ({"Origin": "https://hub.example.org:8443"}, False),
        ({"Origin": "https://evil.example.org"}, False),
        ({"Origin": "https://hub.example.org.evil.org"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": ""}, False),
        ({"Origin": "https://[::"}, False),
        ({"Origin": ELSEWHERE, "Sec-Fetch-Site": "same-origin"}, True),  # no page can say so
        ({"Origin": "https://hub.example.org", "Sec-Fetch-Site": "same-site"}, False),
        ({"Sec-Fetch-Site": "nonsense"}, False),
    ],
)
def test_whose_page_it_is(headers, own):
    assert is_own_page(HTTPHeaders({"Host": "hub.example.org", **headers})) is own


async def test_a_token_in_the_header_needs_no_page_wherever_it_is_sent_from(site, changes):
    for origin in ({}, {"Origin": ELSEWHERE, "Sec-Fetch-Site": "cross-site"}):
        assert (await site.ask(OWN, "ada", method="POST", headers=origin)).status == 200
        assert (await site.ask(STREAM, "ada", headers=origin)).status == 200
    assert len(changes) == 2


@pytest.mark.proves("S2")
async def test_a_token_that_is_not_good_is_not_helped_by_a_cookie(site, changes):
    page = await site.page("ada")
    answer = await site.ask(OWN, "unknown", method="POST", headers=page)
    assert answer.status == 401
    assert changes == []


# What is remembered


@pytest.mark.proves("S2")
async def test_a_write_asks_the_hub_again_and_reads_do_not(site, changes):
    assert (await site.ask("api/me", "ada")).status == 200
    del site.hub.tokens["ada"]
    assert (await site.ask("api/me", "ada")).status == 200  # for half a minute
    assert (await site.ask(OWN, "ada", method="POST")).status == 401
    assert changes == []
    # What the write has learned is true for reads as well.
    assert (await site.ask("api/me", "ada")).status == 401


@pytest.mark.proves("S2")
async def test_by_cookie_too(site, changes):
    page = await site.page("ada")
    del site.hub.tokens["ada"]
    assert (await write(site, page)).status == 401
    assert (await site.ask(STREAM, headers=page)).status == 401
    assert changes == []


@pytest.mark.proves("S2")
async def test_rights_that_were_taken_away_count_at_once(site, changes):
    assert (await site.ask("api/leases", "admin")).status == 200
    site.hub.tokens["admin"] = user_model("admin")
    assert (await site.ask(ADMIN, "admin", method="DELETE")).status == 403
    site.hub.tokens["admin"] = user_model("admin", (), admin=True)
    assert (await site.ask(ADMIN, "admin", method="DELETE")).status == 403
    assert changes == []


@pytest.mark.proves("S2")
@pytest.mark.parametrize("status", [429, 500, 502, 503])
async def test_while_the_hub_is_away_nothing_changes(site, changes, status):
    assert (await site.ask("api/me", "ada")).status == 200
    page = await site.page("ada")
    site.hub.status = status
    for answer in (await site.ask(OWN, "ada", method="POST"), await write(site, page)):
        assert (answer.status, answer.body["error"]["code"]) == (503, "hub-away")
        assert answer.headers["Retry-After"] == "10"
    assert changes == []
    site.hub.status = 200
    assert (await site.ask(OWN, "ada", method="POST")).status == 200
