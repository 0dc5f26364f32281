"""The page, the log-in's way back, and the style sheet."""

import asyncio
import contextlib
import logging
from datetime import datetime
from typing import Any

from jupyterhub.services.auth import HubOAuthCallbackHandler
from tornado.web import HTTPError, RequestHandler, StaticFileHandler

from gpuspawner.ledger.store import LedgerAwayError
from gpuspawner.service.auth import XSRFError
from gpuspawner.service.handlers import RETRY_SECONDS, Access, Handler, RefusedError
from gpuspawner.service.headers import HEADERS
from gpuspawner.service.hub import HubAwayError
from gpuspawner.service.page_view import PageView, PageWriter
from gpuspawner.service.questions import overview

log = logging.getLogger(__name__)


class HTMLHandler(Handler):
    """A handler that answers with a page, and sends strangers to the log-in."""

    def not_authenticated(self) -> None:
        """Go to the hub's log-in and come back."""
        self.redirect(self.get_login_url())

    def show(self, template: str, **values: Any) -> str:
        """Render a template in the reader's language."""
        words = self.words
        return self.service.templates.get_template(template).render(
            **words.jinja_globals(),
            lang=words.lang,
            settings=self.service.settings,
            style=self.static_url,
            asker=self.asker,
            **values,
        )

    def show_error(self, error: RefusedError, retry_at: datetime | None) -> None:
        """Write the error as a page."""
        self.set_header("Content-Type", "text/html; charset=UTF-8")
        self.finish(self.show("error.html", error=error, retry_at=retry_at))


class PageHandler(HTMLHandler):
    """My servers, and the pool."""

    async def get(self) -> None:
        """Show the page; without the ledger it says so, and what that means."""
        _ = self.xsrf_token  # sets the cookie with which scripts of this page may ask the API
        now = self.service.clock()
        writer = PageWriter(self.service.settings, self.words, self.person, now)
        page = await self._page(writer, now)
        if page is None:
            page = writer.away()
            self.set_status(503)
            self.set_header("Retry-After", str(RETRY_SECONDS))
        moment = self.words.time(now)
        self.write(self.show("page.html", page=page, moment=moment))

    async def _page(self, writer: PageWriter, now: datetime) -> PageView | None:
        if self.service.hub_id is None:
            return None
        viewer = self.person.viewer(self.service.hub_id)
        try:
            return writer.page(await self.service.books.read(overview, viewer, now))
        except LedgerAwayError:
            return None


class NotFoundHandler(HTMLHandler):
    """Whatever is not there."""

    access = Access.OPEN

    async def prepare(self) -> None:
        """Refuse every method alike."""
        self.refuse(404, "not-found", self.words.text("There is nothing here."))


class CallbackHandler(HTMLHandler, HubOAuthCallbackHandler):
    """Where the hub sends people back to after the log-in."""

    access = Access.OPEN

    async def prepare(self) -> None:
        """Find out whether somebody is logged in already: a second window may have done it."""
        await super().prepare()
        with contextlib.suppress(HubAwayError, XSRFError):
            await self.identify(self.service.hub)

    async def get(self) -> None:
        """Finish the log-in; the hub's library does it, and asks the hub without blocking."""
        try:
            async with asyncio.timeout(self.service.hub.patience_seconds):
                await HubOAuthCallbackHandler.get(self)
        except HTTPError as error:
            if error.status_code < 500:
                raise
            self.refuse_hub_away()
        except Exception as error:  # noqa: BLE001 - the hub's library fails in many ways on a broken answer
            log.warning("a log-in failed, the hub's answer is broken: %s", type(error).__name__)
            self.refuse_hub_away()


class StyleHandler(StaticFileHandler):
    """Files that are the same for everybody."""

    def set_default_headers(self) -> None:
        """Send the same careful headers; the name carries a hash, so a browser may keep it."""
        RequestHandler.set_default_headers(self)
        self.clear_header("Server")
        for name, value in HEADERS.items():
            if name != "Cache-Control":
                self.set_header(name, value)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer with tornado's own page; a wrong method is told which ones there are."""
        if status_code == 405:
            self.set_header("Allow", "GET, HEAD")
        super().write_error(status_code, **kwargs)
