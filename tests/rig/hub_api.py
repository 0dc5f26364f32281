"""A hub's REST API as the tests call it, blocking and not."""

import json as json_module
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import aiohttp
import requests

from tests.rig.processes import wait_for

_TIMEOUT = 90  # a POST that starts a server answers after slow_spawn_timeout at the latest


@dataclass(frozen=True)
class Answer:
    """What an HTTP call brought: the body parsed if it is JSON, as text else, None if empty."""

    status: int
    body: Any
    headers: dict[str, str] = field(repr=False, default_factory=dict)

    @classmethod
    def of(cls, status: int, text: str, headers: dict[str, str]) -> "Answer":
        """Parse a body."""
        try:
            body = json_module.loads(text) if text else None
        except ValueError:
            body = text
        return cls(status, body, headers)


class HubAPI:
    """Calls to a hub at ``url``; ``token`` is the rig's admin token unless a call names another."""

    def __init__(self, url: str, token: str):
        self.url = url
        self.token = token

    def _call(self, path: str, token: str | None) -> tuple[str, dict[str, str]]:
        bearer = token if token is not None else self.token
        return f"{self.url}hub/api{path}", {"Authorization": f"token {bearer}"}

    def api(self, method: str, path: str, *, json: Any = None, token: str | None = None) -> Answer:
        """Call the hub's API: ``api("GET", "/users/ada")``."""
        url, headers = self._call(path, token)
        with requests.Session() as session:
            session.trust_env = False  # a proxy of the machine has no business on loopback
            answer = session.request(method, url, json=json, headers=headers, timeout=_TIMEOUT)
            return Answer.of(answer.status_code, answer.text, dict(answer.headers))

    async def api_async(
        self, method: str, path: str, *, json: Any = None, token: str | None = None
    ) -> Answer:
        """Call the hub's API without blocking the loop."""
        url, headers = self._call(path, token)
        limit = aiohttp.ClientTimeout(total=_TIMEOUT)
        async with (
            aiohttp.ClientSession(timeout=limit) as session,
            session.request(method, url, json=json, headers=headers) as answer,
        ):
            return Answer.of(answer.status, await answer.text(), dict(answer.headers))

    # --- users and servers ----------------------------------------------------------------

    def add_user(self, name: str) -> None:
        """Make sure that a user of this name exists."""
        answer = self.api("POST", f"/users/{quote(name)}")
        if answer.status not in (201, 409):
            raise RuntimeError(f"no user {name}: {answer}")

    def user_token(self, name: str, scopes: list[str] | None = None) -> str:
        """Return a new token of this user, who is made if need be."""
        self.add_user(name)
        body = {"note": "rig"} | ({"scopes": scopes} if scopes else {})
        answer = self.api("POST", f"/users/{quote(name)}/tokens", json=body)
        if answer.status != 201:
            raise RuntimeError(f"no token for {name}: {answer}")
        return answer.body["token"]

    def start_server(
        self,
        user: str,
        server_name: str = "",
        options: dict[str, Any] | None = None,
        token: str | None = None,
    ) -> Answer:
        """Ask for a server: 201 it runs, 202 it starts, else refused.

        Without ``options`` the hub takes the user's last ones; ``{}`` means none.
        """
        self.add_user(user)
        body = None if options is None else {"user_options": options}
        return self.api("POST", _server_path(user, server_name), json=body, token=token)

    async def start_server_async(
        self,
        user: str,
        server_name: str = "",
        options: dict[str, Any] | None = None,
        token: str | None = None,
    ) -> Answer:
        """Ask for a server of a user who exists, without blocking the loop."""
        body = None if options is None else {"user_options": options}
        path = _server_path(user, server_name)
        return await self.api_async("POST", path, json=body, token=token)

    def stop_server(self, user: str, server_name: str = "", token: str | None = None) -> Answer:
        """Stop a server: 204 it is gone, 202 it is going."""
        return self.api("DELETE", _server_path(user, server_name), token=token)

    def server(self, user: str, server_name: str = "") -> dict[str, Any] | None:
        """Return the hub's model of a server that is active or pending, else None."""
        answer = self.api("GET", f"/users/{quote(user)}")
        return ((answer.body or {}).get("servers") or {}).get(server_name)

    def wait_server(
        self, user: str, server_name: str = "", *, ready: bool = True, timeout: float = 60
    ) -> dict[str, Any] | None:
        """Wait until the server is ready (its model is returned), or until there is none."""
        name = f"{user}/{server_name}"
        if not ready:
            wait_for(f"{name} to be gone", lambda: self.server(user, server_name) is None, timeout)
            return None

        def look() -> dict[str, Any] | None:
            model = self.server(user, server_name)
            return model if model and model["ready"] else None

        return wait_for(f"{name} to be ready", look, timeout, every=0.1)


def _server_path(user: str, server_name: str) -> str:
    if server_name:
        return f"/users/{quote(user)}/servers/{quote(server_name)}"
    return f"/users/{quote(user)}/server"
