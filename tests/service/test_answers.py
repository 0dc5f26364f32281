"""What the API answers: whose data, in which form, and how it refuses."""

import re
from pathlib import Path

import pytest

from gpuspawner.domain.leases import State
from gpuspawner.service.routes import API
from gpuspawner.service.schemas import Health
from tests.service.answers import document, lab, validate

PATHS = [path for path, _ in API]


async def test_the_document_names_exactly_the_routes_of_the_api(site):
    written = await document(site)
    assert set(written["paths"]) == {f"/{path}" for path in PATHS}
    assert written["openapi"].startswith("3.1")
    assert written["servers"] == [{"url": "/services/gpu"}]


@pytest.mark.parametrize("path", PATHS)
async def test_real_answers_and_refusals_are_as_the_document_says(site, path):
    lab(site)
    written = await document(site)
    for who in ("ada", "admin", "ada-notebook", "service", None):
        answer = await site.ask(path, who)
        validate(written, path, answer.status, answer.body)
    answer = await site.ask(f"{path}?nonsense=1", "ada")
    validate(written, path, 400, answer.body)


async def test_people_see_their_own_and_others_as_busy_only(site):
    lab(site)
    for path in ("api/me", "api/slices", "api/devices", "api/leases", ""):
        text = (await site.ask(path, "ada")).text
        assert not re.search(r"\b(ben|cho)\b", text), path
    slices = (await site.ask("api/slices", "ada")).body["slices"]
    assert [item["server"] for item in slices if item["shown"] == "own"] == ["", "thesis"]
    assert [item["user"] for item in slices if item["shown"] == "busy"] == [None]


async def test_admins_see_names(site):
    lab(site)
    slices = (await site.ask("api/slices", "admin")).body["slices"]
    assert {item["user"] for item in slices} == {"ada", "ben", None}
    leases = (await site.ask("api/leases", "admin")).body["leases"]
    assert [item["user"] for item in leases] == ["ben", "ada", "cho", "ben", "ada", "ada"]


async def test_a_notebook_sees_its_own_server_and_nothing_else(site):
    lab(site)
    me = (await site.ask("api/me", "ada-notebook")).body
    assert (me["kind"], me["server"], me["profiles"], me["groups"]) == ("notebook", "", None, [])
    assert [item["server"] for item in me["living"]] == [""]
    other = (await site.ask("api/me", "ada-other-notebook")).body
    assert (other["living"], other["ended"]) == ([], [])


async def test_a_notebook_whose_server_ended_learns_how(site):
    site.end(site.grant("ada"))
    me = (await site.ask("api/me", "ada-notebook")).body
    assert me["living"] == []
    assert [item["reason"]["code"] for item in me["ended"]] == ["stopped"]


async def test_free_counts_are_of_the_profiles_that_ones_groups_allow(site):
    lab(site)
    ada = {item["name"]: item for item in (await site.ask("api/me", "ada")).body["profiles"]}
    ben = {item["name"] for item in (await site.ask("api/me", "ben")).body["profiles"]}
    assert "ml-share" in ada
    assert "vis-share" not in ada
    assert "ml-share" not in ben
    assert (ada["whole"]["free"], ada["whole"]["total"]) == (1, 3)
    assert ada["cpu"]["free"] is None


async def test_before_the_hub_published_nothing_is_said_about_profiles(make_site):
    site = await make_site(filled=False)
    me = (await site.ask("api/me", "ada")).body
    assert me["profiles"] is None
    assert (await site.ask("api/devices", "ada")).body == {"devices": []}


@pytest.mark.proves("P5")
async def test_what_is_unknown_is_null(site):
    device = (await site.ask("api/devices", "ada")).body["devices"][0]
    assert device["load"]["temperature_c"] is None
    assert device["load"]["power_w"] is None
    assert device["unavailable"] is None
    assert device["observed_at"] == "2026-09-01T08:59:50Z"


# Leases, page by page


async def test_leases_come_in_pages(site):
    lab(site)
    seen, before = [], ""
    while True:
        page = (await site.ask(f"api/leases?limit=2{before}", "admin")).body
        seen += [item["lease_id"] for item in page["leases"]]
        if page["next_before"] is None:
            break
        before = f"&before={page['next_before']}"
    assert seen == [6, 5, 4, 3, 2, 1]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", [6, 5, 4, 3, 2, 1]),
        ("?user=ada", [5, 2, 1]),
        ("?user=nobody", []),
        ("?state=running", [3, 2, 1]),
        ("?state=ended&user=ada", [5]),
        ("?state=ended&state=running", [6, 5, 4, 3, 2, 1]),
        ("?state=waiting", []),
        ("?limit=0", [6]),
        ("?limit=-7", [6]),
        ("?limit=100000", [6, 5, 4, 3, 2, 1]),
        ("?before=3", [2, 1]),
        ("?_xsrf=anything", [6, 5, 4, 3, 2, 1]),
    ],
)
async def test_admins_choose_leases(site, query, found):
    lab(site)
    leases = (await site.ask(f"api/leases{query}", "admin")).body["leases"]
    assert [item["lease_id"] for item in leases] == found


async def test_others_leases_are_for_admins(site):
    lab(site)
    assert (await site.ask("api/leases?user=ada", "ada")).status == 200
    answer = await site.ask("api/leases?user=ben", "ada")
    assert (answer.status, answer.body["error"]["code"]) == (403, "not-allowed")


async def test_a_deep_page_is_found_behind_many_others(site):
    site.end(site.grant("ada"))
    for _ in range(30):
        site.end(site.grant("ben"))
    page = (await site.ask("api/leases?user=ada&limit=1", "admin")).body
    assert [item["lease_id"] for item in page["leases"]] == [1]
    page = (await site.ask("api/leases?before=2&limit=1", "admin")).body
    assert page["leases"][0]["lease_id"] == 1


# Refusals


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        ("api/me?x=1", "option-unknown", ["x"]),
        ("api/leases?user=a&user=b", "option-type", ["user", "given once"]),
        ("api/leases?limit=many", "option-type", ["limit", "a whole number", "many"]),
        ("api/leases?limit=", "option-type", ["limit", "a whole number"]),
        ("api/leases?limit=1.5", "option-type", ["limit", "a whole number", "1.5"]),
        ("api/leases?before=0", "option-type", ["before", "above 0", "0"]),
        ("api/leases?before=99999999999999999999", "option-type", ["before", "above 0"]),
        ("api/leases?state=gone", "option-type", ["state", "waiting", "ended", "gone"]),
        ("api/leases?user=%00", "option-type", ["user", "255"]),
        ("api/leases?user=" + "a" * 256, "option-type", ["user", "255"]),
        ("api/leases?user=%ff", "option-type", ["user", "UTF-8"]),
    ],
)
async def test_a_wrong_parameter_is_named_with_what_was_expected(site, path, code, words):
    answer = await site.ask(path, "admin")
    assert (answer.status, answer.body["error"]["code"]) == (400, code)
    for word in words:
        assert word in answer.body["error"]["message"]


async def test_refusals_speak_the_readers_language(site):
    answer = await site.ask("api/me?x=1", "ada", headers={"Accept-Language": "zh-CN"})
    assert "选项" in answer.body["error"]["message"]


@pytest.mark.parametrize("path", ["api", "api/", "api/nothing", "api/me/", "api/health/x"])
async def test_what_is_not_there_is_404_as_json(site, path):
    for method in ("GET", "POST"):
        answer = await site.ask(path, "ada", method=method)
        assert (answer.status, answer.body["error"]["code"]) == (404, "not-found")


async def test_a_method_that_is_not_there_is_405_with_what_is(site):
    answer = await site.ask("api/me", "ada", method="POST", data="x")
    assert (answer.status, answer.body["error"]["code"]) == (405, "method-not-allowed")
    assert answer.headers["Allow"] == "GET, HEAD, OPTIONS"


@pytest.mark.parametrize("path", [*PATHS, ""])
async def test_head_is_get_without_a_body_and_options_names_the_methods(site, path):
    got = await site.ask(path, "ada")
    head = await site.ask(path, "ada", method="HEAD")
    assert (head.status, head.text) == (got.status, "")
    assert head.headers["Content-Length"] == str(len(got.text.encode()))
    options = await site.ask(path, method="OPTIONS")
    assert (options.status, options.headers["Allow"]) == (204, "GET, HEAD, OPTIONS")
    assert "Access-Control-Allow-Origin" not in options.headers


async def test_a_large_body_is_refused(site):
    answer = await site.ask("api/me", "ada", method="POST", data=b"x" * 70_000)
    assert answer.status in (400, 413)


@pytest.mark.parametrize("path", [*PATHS, "", "nothing", "api/nothing", "static/page.css"])
async def test_every_answer_carries_the_careful_headers(site, path):
    headers = (await site.ask(path, "ada")).headers
    assert "script" not in headers["Content-Security-Policy"]
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "same-origin"
    assert "Server" not in headers
    if not path.startswith("static/"):
        assert headers["Cache-Control"] == "no-store"


# The reference page


def test_the_reference_names_every_route_problem_and_code():
    folder = Path(__file__).parents[2]
    page = (folder / "docs" / "reference" / "rest-api.md").read_text()
    for path in PATHS:
        assert f"`{path}`" in page
    source = "".join(
        (folder / "gpuspawner" / "service" / f"{name}.py").read_text()
        for name in ("api", "handlers", "run")
    )
    codes = re.findall(r'problems\.(?:add|discard)\("([a-z-]+)"\)', source)
    codes += re.findall(r'refuse\(\d+, "([a-z-]+)"', source)
    codes += re.findall(r'RefusedError\(\s*\d+, "([a-z-]+)"', source)
    codes += re.findall(r'"([a-z]+(?:-[a-z]+)+)": ', source)
    assert len(codes) > 20
    for code in codes:
        assert f"`{code}`" in page, code


def test_the_example_of_health_is_an_answer():
    page = Path(__file__).parents[2] / "docs" / "reference" / "rest-api.md"
    example = page.read_text().partition("## Health")[2].partition("```json")[2].partition("```")[0]
    assert Health.model_validate_json(example).inventory[0].silent


# How leases are read


def test_a_page_of_leases_reads_no_more_than_it_shows(site):
    """By number, downwards, with each filter in the ledger and not after it."""
    for number in range(12):
        site.end(site.grant(("ada", "ben")[number % 2]))
    living = site.grant("ada")
    ended = frozenset({State.ENDED})
    with site.ledger.read() as books:

        def numbers(**asked):
            return [lease.lease_id for lease in books.leases(**asked)]

        assert numbers(limit=3) == [13, 12, 11]
        assert numbers(limit=3, before=11) == [10, 9, 8]
        assert numbers(limit=3, before=1) == []
        assert numbers(limit=0) == []
        assert numbers(limit=3, hub_id="hub", user="ada") == [living.lease_id, 11, 9]
        assert numbers(limit=3, user="ada", states=ended, before=11) == [9, 7, 5]
        assert numbers(limit=3, hub_id="other") == []
        assert numbers(limit=3, user="cho") == []
        assert numbers(limit=99, states=ended | {State.RUNNING}) == list(range(13, 0, -1))
