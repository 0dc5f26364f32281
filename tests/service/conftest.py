"""A service in this process, with a double of the hub and a ledger with a small lab in it."""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yarl
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, create_signed_value

from gpuspawner.broker.broker import Broker
from gpuspawner.domain.leases import Lease
from gpuspawner.domain.profiles import Profile
from gpuspawner.ledger.store import Ledger
from gpuspawner.service.handlers import Service
from gpuspawner.service.routes import ROUTES, Route
from gpuspawner.service.run import make_app, make_service
from tests.builders import (
    EXITED,
    ML_SHARE,
    SMALL_MIG,
    T0,
    WHOLE,
    after,
    claim,
    device,
    inventory,
    mig_device,
    sharing_policy,
    stopped,
)  # fmt: skip
from tests.service.doubles import HubDouble, notebook_model, service_model, user_model

PREFIX = "/services/gpu/"
NOW = after(3600)


@dataclass
class Answer:
    """What a request brought."""

    status: int
    headers: Any
    text: str
    body: Any = None


@dataclass
class Site:
    """A running service and everything around it."""

    url: str
    hub: HubDouble
    service: Service
    ledger: Ledger
    secret: bytes
    session: aiohttp.ClientSession
    app: Application
    now: list[datetime] = field(default_factory=lambda: [NOW])

    @property
    def broker(self) -> Broker:
        return Broker(self.ledger, "agent")

    def cookie(self, token: str) -> dict[str, str]:
        """The header of a browser that is logged in with this token."""
        value = create_signed_value(self.secret, "service-gpu", token).decode()
        return {"Cookie": f"service-gpu={value}", "Sec-Fetch-Mode": "navigate"}

    async def page(self, token: str) -> dict[str, str]:
        """The headers of a script in the page, which a browser with this token has opened."""
        opened = self.cookie(token)
        shown = await self.ask("", headers=opened)
        assert shown.status == 200
        value = shown.headers["Set-Cookie"].partition("_xsrf=")[2].partition(";")[0]
        return {
            "Cookie": f"{opened['Cookie']}; _xsrf={value}",
            "X-XSRFToken": value,
            "Origin": self.url.removesuffix(self.service.settings.prefix),
            "Sec-Fetch-Mode": "cors",
            "Sec-Fetch-Site": "same-origin",
        }

    async def ask(
        self, path: str, token: str | None = None, *, method: str = "GET", **settings: Any
    ) -> Answer:
        """Ask a route below the prefix; redirects are not followed."""
        headers = settings.pop("headers", {})
        if token is not None:
            headers = {**headers, "Authorization": f"token {token}"}
        url = yarl.URL(f"{self.url}{path}", encoded=True)
        async with self.session.request(
            method, url, headers=headers, allow_redirects=False, **settings
        ) as answer:
            text = await answer.text()
            body = None
            if answer.content_type == "application/json" and text:
                body = await answer.json()
            return Answer(answer.status, answer.headers, text, body)

    def grant(self, user: str, profile: Profile = WHOLE, server: str = "") -> Lease:
        """Let a server hold a slice, running."""
        lease = self.broker.request(claim(user, profile, server), after(60))
        self.broker.bind(lease, f"run-{lease.lease_id}", after(61))
        self.broker.run(lease, after(62), after(62))
        with self.ledger.read() as books:
            found = books.lease(lease.lease_id)
        assert found is not None
        return found

    def end(self, lease: Lease) -> None:
        """Let a server end by itself."""
        self.broker.end(lease.lease_id, stopped(), EXITED, after(3000))


TOKENS = {
    "own": service_model("gpu"),
    "staff": user_model("staff", groups=["ml101", "ml101-staff"]),
    "ada": user_model("ada", groups=["ml101"]),
    "ben": user_model("ben"),
    "admin": user_model("admin", admin=True),
    "ada-notebook": notebook_model("ada"),
    "ada-other-notebook": notebook_model("ada", "other"),
    "admin-notebook": notebook_model("admin", admin=True),
    "service": service_model("grader"),
    "no-access": user_model("cho", scopes=()),
}


@pytest.fixture
def fill() -> Callable[[Ledger], None]:
    """Put the lab into a ledger: a policy and four devices."""

    def work(ledger: Ledger) -> None:
        broker = Broker(ledger, "agent")
        broker.publish(sharing_policy(), "hub", T0)
        seen = inventory(
            device("a", index=0), device("b", index=1), device("c", index=2),
            mig_device("m", 5, 5, 10, index=3), observed_at=after(3590),
        )  # fmt: skip
        broker.observe(seen, after(3590))

    return work


@pytest.fixture
async def make_site(
    tmp_path: Path, fill: Callable[[Ledger], None]
) -> AsyncIterator[Callable[..., Any]]:
    """Make services; ``filled=False`` leaves the ledger empty, ``ledger_url`` names another."""
    async with contextlib.AsyncExitStack() as stack:

        async def make(
            *, filled: bool = True, routes: Sequence[Route] = ROUTES, **environment: str
        ) -> Site:
            hub = HubDouble()
            stack.push_async_callback(hub.close)
            hub.tokens.update(TOKENS)
            url = f"sqlite:///{tmp_path}/ledger.sqlite"
            ledger = Ledger(url)
            stack.callback(ledger.close)
            if filled:
                fill(ledger)
            given = {
                "GPUSPAWNER_LEDGER_URL": url,
                "JUPYTERHUB_API_URL": hub.api_url,
                "JUPYTERHUB_API_TOKEN": "own",
                "JUPYTERHUB_SERVICE_PREFIX": PREFIX,
                **environment,
            }
            now = [NOW]
            service = make_service(given, clock=lambda: now[0])
            service.hub_id = "hub"
            stack.callback(service.books.close)
            app = make_app(service, routes)
            server = HTTPServer(app, max_body_size=65536)
            sockets = bind_sockets(0, "127.0.0.1")
            server.add_sockets(sockets)
            stack.push_async_callback(server.close_all_connections)
            stack.callback(server.stop)
            session = await stack.enter_async_context(
                aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
            )
            await service.pulse.look()
            base = f"http://127.0.0.1:{sockets[0].getsockname()[1]}{service.settings.prefix}"
            secret = app.settings["cookie_secret"]
            return Site(base, hub, service, ledger, secret, session, app, now)

        yield make


@pytest.fixture
async def site(make_site: Callable[..., Any]) -> Site:
    """The usual service with the usual lab."""
    return await make_site()


__all__ = ["ML_SHARE", "NOW", "PREFIX", "SMALL_MIG", "TOKENS", "WHOLE", "Answer", "Site"]
