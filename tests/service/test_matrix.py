"""Each kind of token at each route. Made from the route table: a new route fails until it has its
line here."""

import pytest

from gpuspawner.service.routes import API, PAGES
from tests.service.conftest import Site

WHO = (
    "nobody", "unknown", "cookie", "ada", "ben", "admin", "ada-notebook", "admin-notebook",
    "service", "no-access",
)  # fmt: skip
OPEN = dict.fromkeys(WHO, 200)
PEOPLE = {
    "nobody": 401, "unknown": 401, "cookie": 200, "ada": 200, "ben": 200, "admin": 200,
    "ada-notebook": 403, "admin-notebook": 403, "service": 403, "no-access": 403,
}  # fmt: skip
NOTEBOOKS_TOO = {**PEOPLE, "ada-notebook": 200, "admin-notebook": 200}
PAGE = {**PEOPLE, "nobody": 302, "unknown": 302}
EXPECTED: dict[str, dict[str, int]] = {
    "api/health": OPEN,
    "api/openapi.json": OPEN,
    "api/me": NOTEBOOKS_TOO,
    "api/devices": PEOPLE,
    "api/slices": PEOPLE,
    "api/leases": PEOPLE,
    "": PAGE,
    "oauth_callback": dict.fromkeys(WHO, 400),  # without a code it is no way back from anywhere
}
ROUTES = [path for path, _ in [*API, *PAGES]]
METHODS = ("POST", "PUT", "PATCH", "DELETE")


async def status(site: Site, path: str, who: str, method: str = "GET") -> int:
    headers = site.cookie("ada") if who == "cookie" else {}
    token = None if who in ("nobody", "cookie") else who
    answer = await site.ask(path, token, method=method, headers=headers)
    if path.startswith("api/"):
        assert answer.headers["Content-Type"].startswith("application/json")
        assert answer.status not in (301, 302)
        assert (answer.status == 200) is ("error" not in answer.body)
    return answer.status


def test_every_route_has_a_line_and_every_line_a_route():
    assert set(EXPECTED) == set(ROUTES)
    assert all(set(line) == set(WHO) for line in EXPECTED.values())


@pytest.mark.parametrize("path", ROUTES)
async def test_who_reaches_what(site, path):
    site.grant("ada")
    found = {who: await status(site, path, who) for who in WHO}
    assert found == EXPECTED[path]


@pytest.mark.parametrize("path", ROUTES)
async def test_nothing_can_be_written(site, path):
    for method in METHODS:
        for who in WHO:
            assert await status(site, path, who, method) in (401, 403, 405, 302), (who, method)
    with site.ledger.read() as books:
        assert books.recent() == []
