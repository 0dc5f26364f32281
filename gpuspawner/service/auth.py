"""Who asks: the hub's answer about a token, turned into a reader. JupyterHub's ways are here.

The hub is asked without blocking the loop, and its answer is kept for half a minute. A token that
carries ``access:servers!server=`` is a notebook's, whoever owns it (hub facts H3): a person may
open a malicious notebook, so it reaches its own server and nothing else.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from jupyterhub.services.auth import HubOAuth, HubOAuthenticated, check_scopes
from tornado.web import HTTPError

from gpuspawner.domain.picture import Viewer

CACHE_SECONDS: Final = 30
HUB_PATIENCE_SECONDS: Final = 10.0

_DEFAULT_API_URL: Final = "http://127.0.0.1:8081/hub/api"
_SERVER_SCOPE: Final = "access:servers!server="


class HubAwayError(Exception):
    """The hub did not say who asks."""


class XSRFError(Exception):
    """A request by cookie that did not come from a page of ours."""


class Kind(StrEnum):
    """What sort of reader it is."""

    PERSON = "person"
    NOTEBOOK = "notebook"
    OTHER = "other"  # known to the hub, with no business here


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Who asks. ``server`` is the one server that a notebook's token speaks for."""

    kind: Kind
    name: str
    admin: bool = False
    groups: frozenset[str] = frozenset()
    server: str | None = None

    def viewer(self, hub_id: str) -> Viewer:
        """Return this reader as the rules know one."""
        return Viewer(hub_id=hub_id, user=self.name, admin=self.admin)


def asker_from(model: Mapping[str, Any], service: str) -> Asker:
    """Read the hub's model of a token's owner, with the token's scopes."""
    name = str(model["name"])
    scopes = frozenset(model.get("scopes", ()))
    nobody = Asker(kind=Kind.OTHER, name=name)
    if model.get("kind") != "user":
        return nobody
    if not check_scopes({"access:services", f"access:services!service={service}"}, scopes):
        return nobody
    servers = {
        scope.removeprefix(_SERVER_SCOPE) for scope in scopes if scope.startswith(_SERVER_SCOPE)
    }
    own = sorted(
        server.removeprefix(f"{name}/") for server in servers if server.startswith(f"{name}/")
    )
    if len(own) == 1:
        return Asker(kind=Kind.NOTEBOOK, name=name, server=own[0])
    # Somebody else's server may be shared with a person, whose own tokens then name it too; they
    # also reach all of the person's own servers. A token that does not is a notebook's.
    wider = "access:servers" in scopes or f"access:servers!user={name}" in scopes
    if own or (servers and not wider):
        return nobody
    return Asker(
        kind=Kind.PERSON,
        name=name,
        admin=model.get("admin") is True,
        groups=frozenset(model.get("groups") or ()),
    )


def hub_auth_from(environment: Mapping[str, str], prefix: str, service: str) -> HubOAuth:
    """Make the client that asks the hub."""
    scopes = {"access:services", f"access:services!service={service}"}
    base = environment.get("JUPYTERHUB_BASE_URL") or "/"
    return HubOAuth(
        base_url=prefix,
        api_url=environment.get("JUPYTERHUB_API_URL") or _DEFAULT_API_URL,
        hub_host=environment.get("JUPYTERHUB_HOST", ""),
        hub_prefix=f"{base.rstrip('/')}/hub/",
        oauth_redirect_uri=environment.get("JUPYTERHUB_OAUTH_CALLBACK_URL")
        or f"{prefix}oauth_callback",
        api_token=environment.get("JUPYTERHUB_API_TOKEN") or "missing",
        oauth_client_id=environment.get("JUPYTERHUB_CLIENT_ID") or f"service-{service}",
        cache_max_age=CACHE_SECONDS,
        access_scopes=scopes,
    )


class Authenticated(HubOAuthenticated):
    """Mixin for handlers: finds out who asks, without ever blocking the loop."""

    request: Any

    async def identify(self, service: str, *, fresh: bool = False) -> Asker | None:
        """Return who asks, or None when nobody is named or the hub does not know the token.

        Args:
            service: the service's name at the hub.
            fresh: ask the hub again, whatever is remembered (for writes).

        Raises:
            HubAwayError: the hub does not answer.
            XSRFError: a cookie came with a request that no page of ours made.
        """
        auth = self.hub_auth
        token = auth.get_token(self, in_cookie=False)
        if not token:
            token = auth.get_token(self)
            if token:
                self._check_origin()
        else:
            self._token_authenticated = True  # read by the hub's XSRF check
        model = None
        if token:
            question = auth.user_for_token(
                token, use_cache=not fresh, session_id=auth.get_session_id(self), sync=False
            )
            try:
                async with asyncio.timeout(HUB_PATIENCE_SECONDS):
                    model = await question
            except (HTTPError, TimeoutError, ValueError) as error:
                raise HubAwayError(str(error)) from error
        self.current_user = model  # so that the hub's own helpers never ask again, blocking
        return None if model is None else asker_from(model, service)

    def _check_origin(self) -> None:
        try:
            self.check_xsrf_cookie()
        except HTTPError as error:
            self.current_user = None
            raise XSRFError(error.log_message or "") from error

    def get_current_user(self) -> Any:
        """Never ask the hub from here: it would block the loop (hub facts H5)."""
        return None
