"""A double of the hub's API on loopback: it knows tokens, and may be slow, broken or away."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

ACCESS = "access:services!service=gpu"


def user_model(
    name: str, scopes: Sequence[str] = (ACCESS,), *, admin: bool = False, groups: Sequence[str] = ()
) -> dict[str, Any]:
    """What the hub says of a person's token."""
    return {
        "kind": "user", "name": name, "admin": admin, "groups": list(groups),
        "scopes": sorted(scopes), "session_id": None, "token_id": "a1",
    }  # fmt: skip


def notebook_model(name: str, server: str = "", **values: Any) -> dict[str, Any]:
    """What the hub says of the token inside a notebook server."""
    scopes = [ACCESS, f"access:servers!server={name}/{server}", f"users:activity!user={name}"]
    return user_model(name, scopes, **values)


def service_model(name: str, scopes: Sequence[str] = ("access:services",)) -> dict[str, Any]:
    """What the hub says of another service's token."""
    return {"kind": "service", "name": name, "admin": False, "scopes": sorted(scopes)}


class HubDouble:
    """Answers ``GET /hub/api/user`` by token, and turns a log-in's code into a token."""

    def __init__(self) -> None:
        self.tokens: dict[str, dict[str, Any]] = {}
        self.codes: dict[str, str] = {}
        self.status = 200  # another one is answered to everything
        self.asked = 0
        self.hold: asyncio.Event | None = None  # nothing is answered before it is set
        app = Application([("/hub/api/user", _User), ("/hub/api/oauth2/token", _Token)], hub=self)
        self._server = HTTPServer(app)
        sockets = bind_sockets(0, "127.0.0.1")
        self._server.add_sockets(sockets)
        self.api_url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}/hub/api"

    async def close(self) -> None:
        if self.hold is not None:
            self.hold.set()
        self._server.stop()
        await self._server.close_all_connections()


class _Handler(RequestHandler):
    @property
    def hub(self) -> HubDouble:
        return self.settings["hub"]

    async def prepare(self) -> None:
        self.hub.asked += 1
        if self.hub.hold is not None:
            await self.hub.hold.wait()
        if self.hub.status != 200:
            self.set_status(self.hub.status)
            self.finish({"status": self.hub.status})


class _User(_Handler):
    def get(self) -> None:
        token = self.request.headers.get("Authorization", "").partition(" ")[2]
        model = self.hub.tokens.get(token)
        if model is None:
            self.set_status(403)
            self.finish({"status": 403})
            return
        self.finish(json.dumps(model))


class _Token(_Handler):
    def post(self) -> None:
        self.finish({"access_token": self.hub.codes[self.get_body_argument("code")]})
