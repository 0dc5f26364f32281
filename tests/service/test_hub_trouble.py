"""A hub whose API is slow, silent, wrong or cut off (F25): a clear answer in time, nothing kept of
it, and all well again without a restart."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.doubles.fault_proxy import FaultProxy
from tests.service.conftest import Answer, Site
from tests.service.doubles import user_model
from tests.service.writing import OWN, with_writing

PATIENCE_SECONDS = 0.5
USER, TOKEN, ALL = r"/api/user$", r"/oauth2/token", r"/hub/"

FAULTS: dict[str, dict[str, Any]] = {
    **{str(status): {"status": status} for status in (299, 400, 404, 418, 429, 500, 502, 503, 504)},
    "429-later": {"status": 429, "headers": {"Retry-After": "3600"}},
    "500-page": {"status": 500, "body": "<h1>Bad Gateway</h1>"},
    "a-page": {"status": 200, "body": "<html><body>Please log in</body></html>"},
    "an-empty-page": {"status": 200, "body": ""},
    "half-a-body": {"cut": 12},
    "no-body": {"cut": 0},
    "closed": {"close": True},
    "reset": {"reset": True},
    "hangs": {"hang": True},
    "hangs-with-its-answer": {"keep": True},
    "nobody-knows-whom": {"status": 204},
    "redirected": {"status": 302, "headers": {"Location": "/hub/nowhere"}},
    "redirected-in-a-ring": {"status": 302, "headers": {"Location": "/hub/api/user"}},
}
WRONG: dict[str, Any] = {
    "a-list": [], "a-text": "ada", "a-number": 1, "nothing": {}, "no-name": {"kind": "user"},
    "an-empty-name": user_model(""), "a-name-that-is-none": {**user_model("x"), "name": 7},
    "scopes-that-are-none": {**user_model("ada"), "scopes": "access:services"},
    "groups-that-are-none": {**user_model("ada"), "groups": [1]},
    "an-error-as-200": {"status": 500, "message": "Internal Server Error"},
}  # fmt: skip
FAULTS |= {name: {"change": lambda _, told=told: told} for name, told in WRONG.items()}


@dataclass
class World:
    """A service that reaches its hub through a proxy, and what its routes let change."""

    site: Site
    proxy: FaultProxy
    changes: list[str]

    async def logging_in(self) -> tuple[str, dict[str, str]]:
        """Begin a log-in; return the way back and its cookie."""
        first = await self.site.ask("")
        state = first.headers["Location"].partition("&state=")[2].partition("&")[0]
        cookie = {"Cookie": first.headers["Set-Cookie"].partition(";")[0]}
        return f"oauth_callback?code=code&state={state}", cookie


@pytest.fixture
async def world(make_site: Callable[..., Any]) -> AsyncIterator[World]:
    changes: list[str] = []
    site = await make_site(routes=with_writing(changes))
    with FaultProxy(site.hub.api_url) as proxy:
        site.service.auth.api_url = proxy.url
        site.service.hub.patience_seconds = PATIENCE_SECONDS
        site.hub.codes["code"] = "ada"
        yield World(site, proxy, changes)


def is_away(answer: Answer) -> None:
    """Hold an answer against what must be said, as JSON or as a page."""
    assert answer.status == 503
    assert answer.headers["Retry-After"] == "10"
    if answer.body is None:
        assert answer.headers["Content-Type"].startswith("text/html")
        assert "JupyterHub does not answer right now" in answer.text
        assert "http://127.0.0.1" not in answer.text
    else:
        assert answer.body["error"]["code"] == "hub-away"
        assert answer.body["error"]["retry_at"] == "2026-09-01T09:00:10Z"


async def each_way(site: Site, page: dict[str, str]) -> list[Answer]:
    """Ask in each way that needs to know who it is, at once."""
    return await asyncio.gather(
        site.ask("api/me", "ada"),
        site.ask("api/leases", "admin"),
        site.ask("api/me", "ada-notebook"),
        site.ask("", headers=site.cookie("ben")),
        site.ask(OWN, "ada", method="POST"),
        site.ask(OWN, method="POST", headers=page),
    )


@pytest.mark.parametrize("fault", FAULTS)
async def test_while_the_hub_is_broken_everything_says_so_in_time(world, fault):
    site = world.site
    page = await site.page("ada")
    site.service.auth.cache.clear()
    began = time.monotonic()
    with world.proxy.during("GET", USER, **FAULTS[fault]):
        for answer in await each_way(site, page):
            is_away(answer)
        health = await site.ask("api/health")
    assert time.monotonic() - began < 6 * PATIENCE_SECONDS
    assert world.changes == []
    assert (health.body["hub"], health.body["problems"]) == ("degraded", ["hub-away"])
    assert {answer.status for answer in await each_way(site, page)} == {200}
    assert len(world.changes) == 2
    health = (await site.ask("api/health")).body
    assert (health["hub"], health["status"]) == ("ok", "ok")


async def test_a_hub_that_is_not_there_is_no_other(world):
    site = world.site
    page = await site.page("ada")
    site.service.auth.cache.clear()
    with world.proxy.refusing():
        for answer in await each_way(site, page):
            is_away(answer)
    assert {answer.status for answer in await each_way(site, page)} == {200}


async def test_whom_it_knows_already_goes_on_reading(world):
    assert (await world.site.ask("api/me", "ada")).status == 200
    with world.proxy.during("*", ALL, status=503):
        assert (await world.site.ask("api/me", "ada")).status == 200
        is_away(await world.site.ask(OWN, "ada", method="POST"))
        assert (await world.site.ask("api/me", "ada")).status == 200
    assert world.changes == []


async def test_what_it_knows_is_not_lost_by_a_write_that_failed_nor_kept_by_a_refusal(world):
    """A broken answer teaches nothing; "not known" is asked again the next time."""
    site = world.site
    with world.proxy.during("GET", USER, status=403):
        assert (await site.ask("api/me", "ada")).status == 401
        assert (await site.ask("", headers=site.cookie("ada"))).status == 302
    assert (await site.ask("api/me", "ada")).status == 200
    assert (await site.ask("", headers=site.cookie("ada"))).status == 200


@pytest.mark.parametrize("fault", [*(name for name in FAULTS if name not in WRONG), "a-list"])
async def test_a_log_in_that_the_hub_breaks_off_can_be_begun_again(world, fault):
    site = world.site
    back, cookie = await world.logging_in()
    began = time.monotonic()
    with world.proxy.during("POST", TOKEN, **FAULTS[fault]):
        is_away(await site.ask(back, headers=cookie))
    assert time.monotonic() - began < 4 * PATIENCE_SECONDS
    back, cookie = await world.logging_in()
    assert (await site.ask(back, headers=cookie)).status == 302


@pytest.mark.parametrize("fault", FAULTS)
async def test_nor_does_one_break_that_is_broken_off_at_its_last_question(world, fault):
    site = world.site
    back, cookie = await world.logging_in()
    with world.proxy.during("GET", USER, **FAULTS[fault]):
        answer = await site.ask(back, headers=cookie)
    if fault not in WRONG:
        is_away(answer)
    back, cookie = await world.logging_in()
    done = await site.ask(back, headers=cookie)
    assert done.status == 302
    kept = "; ".join(item.partition(";")[0] for item in done.headers.getall("Set-Cookie"))
    assert (await site.ask("", headers={"Cookie": kept})).status == 200


async def test_a_hang_holds_nobody_up_whom_it_does_not_concern(world):
    site = world.site
    assert (await site.ask("api/me", "ben")).status == 200
    with world.proxy.during("GET", USER, hang=True) as fault:
        waiting = [asyncio.ensure_future(site.ask("api/me", "ada")) for _ in range(20)]
        while not fault.count:  # noqa: ASYNC110 - the proxy has threads, no loop
            await asyncio.sleep(0.01)
        began = time.monotonic()
        assert (await site.ask("api/me", "ben")).status == 200
        assert (await site.ask("", headers=site.cookie("ben"))).status == 200
        assert time.monotonic() - began < PATIENCE_SECONDS
        assert (await site.ask("api/health")).status == 200
        for answer in await asyncio.gather(*waiting):
            is_away(answer)


# The service's own looks at the hub


@contextlib.asynccontextmanager
async def looking(site: Site, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    for name in ("LOOK_SECONDS", "LOOK_AGAIN_SECONDS"):
        monkeypatch.setattr(f"gpuspawner.service.hub.{name}", 0.02)
    task = asyncio.ensure_future(site.service.hub.run())
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def until(look: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not look():  # noqa: ASYNC110 - what is looked at sends no event
            await asyncio.sleep(0.01)


async def test_it_looks_by_itself_and_says_since_when(world, monkeypatch):
    site, hub = world.site, world.site.service.hub
    assert (await site.ask("api/health")).body["hub"] == "unknown"
    async with looking(site, monkeypatch):
        await until(lambda: hub.part.state == "ok")
        site.now[0] = site.now[0].replace(minute=5)
        with world.proxy.during("*", ALL, hang=True):
            await until(lambda: hub.part.state == "degraded")
            health = (await site.ask("api/health")).body
            assert health["since"]["hub"] == "2026-09-01T09:05:00Z"
            assert "hub-away" in health["problems"]
        site.now[0] = site.now[0].replace(minute=7)
        await until(lambda: hub.part.state == "ok")
        assert (await site.ask("api/health")).body["since"]["hub"] == "2026-09-01T09:07:00Z"


async def test_a_token_of_its_own_that_the_hub_does_not_know_is_said(world, monkeypatch, caplog):
    site = world.site
    model = site.hub.tokens.pop("own")
    async with looking(site, monkeypatch):
        await until(lambda: site.service.hub.token_refused)
        assert "hub-token-refused" in (await site.ask("api/health")).body["problems"]
        site.hub.tokens["own"] = model
        await until(lambda: not site.service.hub.token_refused)
    said = [record for record in caplog.records if "own token" in record.getMessage()]
    assert len(said) == 1
    assert (await site.ask("api/health")).body["status"] == "ok"
