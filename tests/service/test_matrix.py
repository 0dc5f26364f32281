"""Each kind of token at each route and method. Made from the route table: a new route, or a new
method of one, fails until it has its line here (S1)."""

import pytest

from gpuspawner.service.handlers import Access, Handler
from gpuspawner.service.routes import ROUTES
from tests.service.conftest import Site
from tests.service.doubles import notebook_model, user_model
from tests.service.writing import ADMIN, LEASE, OWN, SERVER, STREAM, with_writing, writing

NOBODY = ("nobody", "unknown", "garbage", "expired", "expired-cookie")
STRANGERS = ("service", "no-access")
PEOPLE = ("cookie", "page", "ada", "ben", "staff", "admin")
NOTEBOOKS = ("ada-notebook", "stopped-notebook", "admin-notebook")
WHO = (*NOBODY, *STRANGERS, *PEOPLE, *NOTEBOOKS)


def line(nobody: int, **others: int) -> dict[str, int]:
    """Everybody is refused but those who are named; ``people`` and ``notebooks`` are many."""
    found = dict.fromkeys(NOBODY, nobody) | dict.fromkeys(WHO[len(NOBODY) :], 403)
    for name, status in others.items():
        names = {"people": PEOPLE, "notebooks": NOTEBOOKS}.get(name, (name.replace("_", "-"),))
        assert set(names) <= set(WHO)
        found |= dict.fromkeys(names, status)
    return found


EVERYBODY = dict.fromkeys(WHO, 200)
EXPECTED: dict[tuple[str, str], dict[str, int]] = {
    ("api/health", "GET"): EVERYBODY,
    ("api/openapi.json", "GET"): EVERYBODY,
    ("api/me", "GET"): line(401, people=200, notebooks=200),
    ("api/devices", "GET"): line(401, people=200),
    ("api/slices", "GET"): line(401, people=200),
    ("api/leases", "GET"): line(401, people=200),
    ("", "GET"): line(302, people=200),
    # Without a code it is no way back from anywhere.
    ("oauth_callback", "GET"): dict.fromkeys(WHO, 400),
}  # fmt: skip

# A path names ada's server or her lease. A cookie alone, without the page's value, changes nothing.
WRITING: dict[tuple[str, str], dict[str, int]] = {
    **{
        (OWN, method): line(401, people=200, cookie=403)
        for method in ("POST", "PUT", "PATCH", "DELETE")
    },
    (SERVER, "POST"): line(401, page=200, ada=200, admin=200, ada_notebook=200),
    (LEASE, "DELETE"): line(401, page=200, ada=200, admin=200, ada_notebook=200),
    (ADMIN, "DELETE"): line(401, admin=200),
    (STREAM, "GET"): line(401, people=200, cookie=403),
}  # fmt: skip
# For the page of nobody in particular, XSRF is judged before anybody is asked for.
for _line in WRITING.values():
    _line["expired-cookie"] = 403

METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "PURGE")


async def status(site: Site, path: str, who: str, method: str) -> int:
    """Ask as somebody, and hold the answer's form against its kind."""
    headers: dict[str, str] = {}
    token: str | None = who
    if who in ("nobody", "cookie", "page", "expired-cookie"):
        token = None
        if who == "page":
            headers = await site.page("ada")
        elif who != "nobody":
            headers = site.cookie("ada" if who == "cookie" else "expired")
    if who == "garbage":
        token = "t\u00f6k\u00e9n \u2713 token"
    path = path.format(user="ada", server="", lease_id=1)
    answer = await site.ask(path, token, method=method, headers=headers)
    if path.startswith("api/") and method not in ("HEAD", "OPTIONS") and path != STREAM:
        assert answer.headers["Content-Type"].startswith("application/json")
        assert answer.status not in (301, 302)
        assert (answer.status == 200) is ("error" not in answer.body)
    assert (answer.status == 405) <= ("Allow" in answer.headers)
    return answer.status


@pytest.fixture
def changes() -> list[str]:
    """What the routes of the tests were let change."""
    return []


@pytest.fixture
async def site(make_site, changes) -> Site:
    """Ada's default server runs; her other one has ended, and the hub has left its token (H3)."""
    site = await make_site(routes=with_writing(changes))
    site.hub.tokens["stopped-notebook"] = notebook_model("ada", "stopped")
    site.hub.tokens["expired"] = user_model("ada")
    assert (await site.ask("api/me", "expired")).status == 200  # it was good once
    del site.hub.tokens["expired"]
    site.service.auth.cache.clear()  # and more than half a minute ago
    site.grant("ada")
    site.end(site.grant("ada", server="stopped"))
    return site


def lines_of(routes: list[tuple[str, type[Handler]]]) -> set[tuple[str, str]]:
    """What a table must have: HEAD is as GET, OPTIONS is for everybody."""
    return {
        (path, method) for path, handler in routes for method in handler.methods()
        if method not in ("HEAD", "OPTIONS")
    }  # fmt: skip


@pytest.mark.proves("S1")
def test_every_route_and_method_has_a_line_and_every_line_a_route():
    assert set(EXPECTED) == lines_of(ROUTES)
    assert set(WRITING) == lines_of(writing([]))
    assert all(set(found) == set(WHO) for found in [*EXPECTED.values(), *WRITING.values()])


def test_every_access_is_in_a_line():
    assert {handler.access for _, handler in [*ROUTES, *writing([])]} == set(Access)


@pytest.mark.proves("S1")
async def test_the_application_has_no_route_beside_the_table(make_site):
    site = await make_site()
    prefix = site.service.settings.prefix
    patterns = {
        rule.matcher.regex.pattern.removeprefix(prefix)
        for rule in site.app.wildcard_router.rules
    }  # fmt: skip
    table = {f"{path.replace('.', chr(92) + '.')}$" for path, _ in ROUTES}
    # What is not there under api/, and three of tornado's own for files.
    assert patterns == table | {
        "api(?:/.*)?$", "static/(.*)$", "/(favicon\\.ico)$", "/(robots\\.txt)$",
    }  # fmt: skip


@pytest.mark.proves("S1")
@pytest.mark.parametrize(("path", "method"), [*EXPECTED, *WRITING])
async def test_who_reaches_what(site, changes, path, method):
    expected = (EXPECTED | WRITING)[path, method]
    found = {who: await status(site, path, who, method) for who in WHO}
    assert found == expected
    allowed = [status for status in expected.values() if status == 200]
    assert len(changes) == (len(allowed) if (path, method) in WRITING and path != STREAM else 0)
    if method == "GET":
        again = {who: await status(site, path, who, "HEAD") for who in WHO}
        assert again == expected


@pytest.mark.proves("S1")
@pytest.mark.parametrize("path", [path for path, _ in [*ROUTES, *writing([])]])
async def test_what_a_route_does_not_have_is_refused_to_everybody_alike(site, changes, path):
    handler = dict([*ROUTES, *writing([])])[path]
    for method in METHODS:
        if method in handler.methods() and method != "OPTIONS":
            continue
        for who in WHO:
            expected = 204 if method == "OPTIONS" else 405
            assert await status(site, path, who, method) == expected, (who, method)
    assert changes == []
    with site.ledger.read() as books:
        assert len(books.recent()) == 2


@pytest.mark.parametrize("path", ["static/page.css", "nothing", "api/nothing", "api"])
async def test_what_is_no_route_changes_nothing(site, path):
    for who in WHO:
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            expected = 405 if path.startswith("static/") else 404
            assert await status(site, path, who, method) == expected


async def test_a_server_of_somebody_else_is_nobodys_but_theirs(site, changes):
    ben = site.grant("ben")
    for path, method in ((f"api/test-leases/{ben.lease_id}", "DELETE"),
                         ("api/test-servers/ben/", "POST"),
                         ("api/test-servers/ada/stopped", "POST")):  # fmt: skip
        for who in ("ada-notebook", "stopped-notebook", "admin-notebook"):
            answer = await site.ask(path, who, method=method)
            assert answer.status == 403, (path, who)
    assert (await site.ask("api/test-servers/ben/", "ada", method="POST")).status == 403
    assert changes == []


async def test_a_notebook_writes_only_while_its_server_holds_something(site, changes):
    path = "api/test-servers/ada/stopped"
    answer = await site.ask(path, "stopped-notebook", method="POST")
    assert (answer.status, answer.body["error"]["code"]) == (403, "not-running")
    site.grant("ada", server="stopped")
    assert (await site.ask(path, "stopped-notebook", method="POST")).status == 200
    assert changes == ["ada POST ada/stopped"]
