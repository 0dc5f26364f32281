"""Finds out who asks, and whether a request by cookie came from a page of ours.

JupyterHub's ways are here. Nothing that a page of somebody else can send is believed: a browser
adds ada's cookies to whatever a notebook's page that she opened asks for. So whatever changes
something, and each stream, needs the XSRF value of our own page and must come from our own origin.
A token in the header needs neither: no page can send one that it does not have.
"""

import hmac
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from jupyterhub.services.auth import HubOAuth, HubOAuthenticated
from tornado.httputil import HTTPHeaders
from tornado.web import HTTPError

from gpuspawner.service.askers import Asker
from gpuspawner.service.hub import Hub

CACHE_SECONDS: Final = 30
READS: Final = ("GET", "HEAD", "OPTIONS")

_DEFAULT_API_URL: Final = "http://127.0.0.1:8081/hub/api"


class XSRFError(Exception):
    """A request by cookie that did not come from a page of ours."""


class OwnHubOAuth(HubOAuth):
    """The hub's client, which remembers nothing by itself: it would keep broken answers as well."""

    def user_for_token(
        self,
        token: str,
        use_cache: bool = True,  # noqa: ARG002 - the library's signature
        session_id: str = "",
        *,
        sync: bool = True,
    ) -> Any:
        """Ask the hub, always."""
        return super().user_for_token(token, use_cache=False, session_id=session_id, sync=sync)


def hub_auth_from(environment: Mapping[str, str], prefix: str, service: str) -> HubOAuth:
    """Make the client that asks the hub."""
    scopes = {"access:services", f"access:services!service={service}"}
    base = environment.get("JUPYTERHUB_BASE_URL") or "/"
    return OwnHubOAuth(
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


def is_own_page(headers: HTTPHeaders) -> bool:
    """Whether a request came from a page of the very address that it was sent to.

    A browser says so in ``Sec-Fetch-Site``, which no page can forge. Where it does not (a site
    without TLS), ``Origin`` is held against ``Host``. Neither means no browser of our days: the
    XSRF value must do alone.
    """
    site = headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    origin = headers.get("Origin")
    if origin is None:
        return True
    try:
        return _site_of(origin) == _site_of(
            f"{urlsplit(origin).scheme}://{headers.get('Host', '')}"
        )
    except ValueError:  # a port that is none
        return False


def _site_of(origin: str) -> tuple[str, int | None]:
    found = urlsplit(origin)
    if not found.hostname:
        raise ValueError(f"{origin!r} names no host")
    return found.hostname, found.port or {"http": 80, "https": 443}.get(found.scheme)


class Authenticated(HubOAuthenticated):
    """Mixin for handlers: finds out who asks, without ever blocking the loop."""

    request: Any

    async def identify(
        self, hub: Hub, *, fresh: bool = False, strict: bool = False
    ) -> Asker | None:
        """Return who asks, or None when nobody is named or the hub does not know the token.

        Args:
            hub: whom to ask.
            fresh: ask again, whatever is remembered.
            strict: by cookie only from a page of ours, with its XSRF value.

        Raises:
            HubAwayError: the hub does not answer.
            XSRFError: a cookie came with a request that no page of ours made.
        """
        auth = self.hub_auth
        token = auth.get_token(self, in_cookie=False)
        if token:
            self._token_authenticated = True  # read by the hub's XSRF check
        else:
            token = auth.get_token(self)
            if token:
                self._check_page(strict=strict)
        asker = None
        if token:
            asker = await hub.who(token, auth.get_session_id(self), fresh=fresh)
        self.current_user = asker  # so that the hub's own helpers never ask again, blocking
        return asker

    def _check_page(self, *, strict: bool) -> None:
        self.current_user = None
        try:
            self.check_xsrf_cookie()
        except HTTPError as error:
            raise XSRFError(error.log_message or "") from error
        if not strict:
            return
        if not is_own_page(self.request.headers):
            raise XSRFError("it came from a page of another origin")
        headers = self.request.headers
        given = headers.get("X-XSRFToken") or self.get_argument("_xsrf", "")
        # The hub's check lets some kinds of request pass without a value. Without a cookie, its
        # library makes a value up, the same for a whole second.
        known = "_xsrf" in self.request.cookies
        if not known or not hmac.compare_digest(given.encode(), self.xsrf_token):
            raise XSRFError("the _xsrf value is missing, or of another page or log-in")

    def get_current_user(self) -> Any:
        """Never ask the hub from here: it would block the loop (hub facts H5)."""
        return None
