"""Who may change something, asked of a real hub: rights end at once (S2), pages are needed (S3).

The service has its own routes and those of the tests; it is reached through the hub's proxy.
"""

import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from tornado.httpserver import HTTPServer
from yarl import URL

from gpuspawner.service.run import make_app, make_service
from tests.rig.hub import ROOT, HubProcess
from tests.rig.hub_api import Answer
from tests.rig.processes import free_port
from tests.service.writing import ADMIN, OWN, STREAM, with_writing

TOKEN = "the-services-own-token"
AT_ONCE_SECONDS = 5.0
ACCESS = "access:services!service=gpu"
CONFIG = f"""
c.JupyterHub.spawner_class = "simple"
c.Spawner.cmd = [{sys.executable!r}, {str(ROOT / "tests/rig/stub/stub_server.py")!r}]
c.JupyterHub.services = [
    {{{{"name": "gpu", "api_token": {TOKEN!r}}}}},
    {{{{"name": "grader", "api_token": "of-the-grader"}}}},
]
{{more}}
import gpuspawner
gpuspawner.configure(c, service="external", agent="external", service_port={{port}}, hub_id="lab")
"""
NAMED = "hub.test"  # the hub's own name where each user and service has one


class Names(aiohttp.abc.AbstractResolver):
    """A name server that knows one machine only."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[Any]:
        return [{"hostname": host, "host": "127.0.0.1", "port": port, "family": socket.AF_INET,
                 "proto": 0, "flags": 0}]  # fmt: skip

    async def close(self) -> None:
        """There is nothing to close."""


class Browser:
    """Cookies and the headers of a browser, without its pages."""

    def __init__(self, world: "World", session: aiohttp.ClientSession) -> None:
        self._world, self._session = world, session

    async def log_in(self, name: str) -> None:
        """Log in at the hub, and open the service's page."""
        address = f"{self._world.url}hub/login"
        async with self._session.get(address) as answer:
            assert answer.status == 200
        values = {"username": name, "password": "any", "_xsrf": self._cookies(address)["_xsrf"]}
        async with self._session.post(address, data=values) as answer:
            assert "/hub/login" not in str(answer.url)
        async with self._session.get(self._world.page_url) as answer:
            assert (answer.status, str(answer.url)) == (200, self._world.page_url)

    async def log_out(self) -> None:
        """Log out at the hub."""
        async with self._session.get(f"{self._world.url}hub/logout") as answer:
            assert answer.status == 200

    def script(self) -> dict[str, str]:
        """The headers of a script in the page, with its cookies; to be kept and sent later."""
        cookies = self._cookies(self._world.page_url)
        return {
            "Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items()),
            "X-XSRFToken": cookies["_xsrf"],
            "Origin": str(URL(self._world.page_url).origin()),
            "Sec-Fetch-Mode": "cors",
            "Sec-Fetch-Site": "same-origin",
        }

    def _cookies(self, address: str) -> dict[str, str]:
        found = self._session.cookie_jar.filter_cookies(URL(address))
        return {name: morsel.value for name, morsel in found.items()}


@dataclass
class World:
    """A hub, and a service in this process behind its proxy."""

    hub: HubProcess
    url: str
    page_url: str
    session: aiohttp.ClientSession
    stack: contextlib.AsyncExitStack
    changes: list[str] = field(default_factory=list)

    async def ask(self, method: str, path: str, **settings: Any) -> Answer:
        address = f"{self.page_url}{path}"
        async with self.session.request(
            method, address, allow_redirects=False, **settings
        ) as answer:
            return Answer.of(answer.status, await answer.text(), dict(answer.headers))

    async def write(self, token: str | Mapping[str, str], path: str = OWN) -> int:
        """Try to change something, by token or as a script in a page; return the status."""
        headers = {"Authorization": f"token {token}"} if isinstance(token, str) else dict(token)
        before = len(self.changes)
        answer = await self.ask("DELETE" if path == ADMIN else "POST", path, headers=headers)
        assert (len(self.changes) > before) is (answer.status == 200)
        return answer.status

    async def token(self, user: str, **body: Any) -> tuple[str, str]:
        """Return a new token of this user, and its number at the hub."""
        await self.hub.api_async("POST", f"/users/{user}")
        answer = await self.hub.api_async("POST", f"/users/{user}/tokens", json=body)
        assert answer.status == 201
        return answer.body["token"], answer.body["id"]

    async def browser(self) -> Browser:
        """Return another browser, with no cookies yet."""
        session = await self.stack.enter_async_context(new_session(aiohttp.CookieJar(unsafe=True)))
        return Browser(self, session)


def new_session(jar: aiohttp.abc.AbstractCookieJar) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(resolver=Names())
    return aiohttp.ClientSession(cookie_jar=jar, connector=connector)


@pytest.fixture
async def make_world(
    make_hub: Callable[..., HubProcess], tmp_path: Path
) -> AsyncIterator[Callable[..., Any]]:
    """Make a hub with its service: ``plain``, behind a ``prefix``, or with ``subdomains``."""
    async with contextlib.AsyncExitStack() as stack:

        async def make(way: str = "plain") -> World:
            port = free_port()
            hub = make_hub("", start=False)
            base, url, page_host, more = "/", hub.url, hub.url, ""
            if way == "prefix":
                base = "/teaching/"
                url = page_host = hub.url = f"{hub.url}teaching/"
                more = f"c.JupyterHub.bind_url = {url!r}"
            if way == "subdomains":
                url = hub.url.replace("127.0.0.1", NAMED)
                page_host = url.replace(NAMED, f"gpu--service.{NAMED}")
                more = f"c.JupyterHub.subdomain_host = {url.rstrip('/')!r}"
            hub.write_config(CONFIG.format(port=port, more=more))
            named = way == "subdomains"
            host = url.removesuffix("/") if named else ""
            callback = f"{page_host if named else base}services/gpu/"
            service = make_service(
                {
                    "GPUSPAWNER_LEDGER_URL": f"sqlite:///{tmp_path}/ledger.sqlite",
                    "JUPYTERHUB_API_URL": f"http://127.0.0.1:{hub.hub_port}{base}hub/api",
                    "JUPYTERHUB_API_TOKEN": TOKEN,
                    "JUPYTERHUB_BASE_URL": base,
                    # As the hub tells a service that it starts.
                    "JUPYTERHUB_HOST": host,
                    "JUPYTERHUB_OAUTH_CALLBACK_URL": f"{callback}oauth_callback",
                }
            )
            service.hub_id = "lab"
            stack.callback(service.books.close)
            session = await stack.enter_async_context(new_session(aiohttp.DummyCookieJar()))
            world = World(hub, url, f"{page_host}services/gpu/", session, stack)
            server = HTTPServer(make_app(service, with_writing(world.changes)))
            server.listen(port, "127.0.0.1")
            stack.push_async_callback(server.close_all_connections)
            stack.callback(server.stop)
            await asyncio.to_thread(hub.start)
            return world

        yield make


@pytest.mark.parametrize("way", ["plain", "prefix", "subdomains"])
async def test_a_page_may_write_until_its_log_in_ends(make_world, way):
    world = await make_world(way)
    browser = await world.browser()
    await browser.log_in("ada")
    page = browser.script()
    assert await world.write(page) == 200
    assert (await world.ask("GET", STREAM, headers=page)).status == 200
    assert await world.write(page, ADMIN) == 403
    # What a page of another origin, or one without this page's value, can send.
    elsewhere = {**page, "Origin": "https://elsewhere.example", "Sec-Fetch-Site": "cross-site"}
    plain = {name: value for name, value in elsewhere.items() if name != "Sec-Fetch-Site"}
    valueless = {name: value for name, value in page.items() if name != "X-XSRFToken"}
    for headers in (elsewhere, plain, valueless, {**page, "X-XSRFToken": "guessed"}):
        assert await world.write(headers) == 403
        assert (await world.ask("GET", STREAM, headers=headers)).status == 403
    # The value of the hub's own pages is none of ours.
    at_hub = browser._cookies(f"{world.url}hub/home")["_xsrf"]
    session = page["Cookie"].replace(page["X-XSRFToken"], at_hub)
    assert await world.write({**page, "Cookie": session, "X-XSRFToken": at_hub}) == 403

    await browser.log_out()
    began = time.monotonic()
    assert await world.write(page) == 401  # with everything that the browser had
    assert (await world.ask("GET", STREAM, headers=page)).status == 401
    assert time.monotonic() - began < AT_ONCE_SECONDS
    await browser.log_in("ada")
    assert await world.write(browser.script()) == 200
    stale = {**browser.script(), "X-XSRFToken": page["X-XSRFToken"]}
    assert await world.write(stale) == 403
    assert world.changes == ["ada POST own"] * 2


async def test_a_token_that_ends_changes_nothing_from_then_on(make_world):
    world = await make_world()

    async def ended(token: str, status: int = 401, path: str = OWN) -> None:
        """The first try after the end is refused, although it was just let in."""
        began = time.monotonic()
        assert await world.write(token, path) == status
        assert time.monotonic() - began < AT_ONCE_SECONDS

    revoked, number = await world.token("ada")
    assert await world.write(revoked) == 200
    await world.hub.api_async("DELETE", f"/users/ada/tokens/{number}")
    await ended(revoked)

    of_ben, _ = await world.token("ben")
    assert await world.write(of_ben) == 200
    await world.hub.api_async("DELETE", "/users/ben")
    await ended(of_ben)

    short, _ = await world.token("cho", expires_in=2)
    began = time.monotonic()
    assert await world.write(short) == 200
    while await world.write(short) == 200:
        assert time.monotonic() - began < 2 + AT_ONCE_SECONDS
        await asyncio.sleep(0.1)  # between questions about a clock of the hub's
    await ended(short)
    assert time.monotonic() - began >= 2

    # Rights that are taken away, with a token that stays.
    admin, _ = await world.token("admin")

    async def make_admin(value: bool) -> None:
        answer = await world.hub.api_async(
            "PATCH", "/users/cho", json={"admin": value}, token=admin
        )
        assert answer.body["admin"] is value

    await make_admin(True)
    of_cho, _ = await world.token("cho")
    assert await world.write(of_cho, ADMIN) == 200
    await make_admin(False)
    await ended(of_cho, 403, ADMIN)


async def test_who_the_hub_says_they_are(make_world):
    world = await make_world()
    without, _ = await world.token("ada", scopes=["read:users!user"])
    ada, _ = await world.token("ada", scopes=[ACCESS])
    expected = {"of-the-grader": 403, TOKEN: 403, "unknown": 401, without: 403, ada: 200}
    found = {token: await world.write(token) for token in expected}
    assert found == expected
    assert (await world.ask("POST", OWN)).status == 401
    assert world.changes == ["ada POST own"]


async def test_a_notebooks_token_ends_with_its_server(make_world):
    world = await make_world()
    await world.hub.api_async("POST", "/users/ada")
    assert (await world.hub.api_async("POST", "/users/ada/server")).status in (201, 202)
    await asyncio.to_thread(world.hub.wait_server, "ada")
    token = next(
        environment["JUPYTERHUB_API_TOKEN"]
        for process in psutil.Process(world.hub.pid).children(recursive=True)
        if "JUPYTERHUB_USER" in (environment := process.environ())
    )  # fmt: skip
    headers = {"Authorization": f"token {token}"}
    assert (await world.ask("GET", "api/me", headers=headers)).body["kind"] == "notebook"
    # Its server holds nothing, and other routes are not a notebook's.
    answer = await world.ask("POST", "api/test-servers/ada/", headers=headers)
    assert (answer.status, answer.body["error"]["code"]) == (403, "not-running")
    assert await world.write(token) == 403

    await world.hub.api_async("DELETE", "/users/ada/server")
    await asyncio.to_thread(world.hub.wait_server, "ada", ready=False)
    assert (await world.ask("POST", "api/test-servers/ada/", headers=headers)).status == 401
    assert (await world.ask("GET", "api/me", headers=headers)).status == 401
    assert world.changes == []
