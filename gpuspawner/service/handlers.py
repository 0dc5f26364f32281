"""What all handlers do alike: who asks, in which language, how errors look, which headers."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, ClassVar, Final, NoReturn

from jinja2 import Environment
from jupyterhub.services.auth import HubOAuth
from pydantic import BaseModel
from tornado.web import HTTPError, RequestHandler

from gpuspawner.catalogue import Catalogue, catalogue_for
from gpuspawner.domain.reasons import Code, reason
from gpuspawner.ledger.store import LedgerAwayError
from gpuspawner.service import schemas
from gpuspawner.service.auth import Asker, Authenticated, HubAwayError, Kind, XSRFError
from gpuspawner.service.books import Books, Pulse
from gpuspawner.service.query import InvalidQueryError, parse_query
from gpuspawner.service.settings import Settings

RETRY_SECONDS: Final = 10

HEADERS: Final = {
    # No script at all, and no style but our own files: text from people can do nothing here.
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Access(StrEnum):
    """Whom a route is for. Administrators are persons who see more on the same routes."""

    OPEN = "open"
    NOTEBOOK = "notebook"  # a person, or the notebook of one server
    PERSON = "person"


@dataclass(slots=True)
class Service:
    """Everything that handlers use. Made in one place and passed to each."""

    settings: Settings
    auth: HubOAuth
    books: Books
    pulse: Pulse
    templates: Environment
    clock: Callable[[], datetime]
    problems: set[str]  # codes of what is wrong with the service itself; see `health`
    hub_id: str | None = None  # None until it could be read


class RefusedError(Exception):
    """The request is answered with an error that is expected."""

    def __init__(self, status: int, code: str, message: str, retry_seconds: int | None = None):
        super().__init__(f"{status} {code}")
        self.status = status
        self.code = code
        self.message = message
        self.retry_seconds = retry_seconds


class Handler(Authenticated, RequestHandler):
    """A handler that knows who asks. ``access`` says whom it is for."""

    access: ClassVar[Access] = Access.PERSON
    query: ClassVar[type[schemas.Query]] = schemas.NoQuery
    writes: ClassVar[bool] = False

    service: Service
    asker: Asker | None = None

    def initialize(self, service: Service) -> None:
        """Take what the service is made of."""
        self.service = service
        self.hub_auth = service.auth

    def set_default_headers(self) -> None:
        """Send the headers that keep a browser careful."""
        self.clear_header("Server")
        for name, value in HEADERS.items():
            self.set_header(name, value)

    @property
    def words(self) -> Catalogue:
        """The catalogue in the reader's language."""
        accepted = self.request.headers.get("Accept-Language")
        return catalogue_for(accepted, self.service.settings.language)

    @property
    def person(self) -> Asker:
        """Who asks; only after `prepare` found somebody."""
        assert self.asker is not None
        return self.asker

    async def prepare(self) -> None:
        """Find out who asks and whether the route is for them."""
        if self.access is Access.OPEN or self.request.method == "OPTIONS":
            return
        try:
            self.asker = await self.identify(self.service.settings.name, fresh=self.writes)
        except HubAwayError:
            self.refuse(503, "hub-away", self.words.text(
                "JupyterHub does not answer right now, so it is not known who you are. Your "
                "running servers go on. Try again in a minute."
            ), RETRY_SECONDS)  # fmt: skip
        except XSRFError:
            self.refuse(403, "xsrf", self.words.text(
                "This request did not come from a page of this service. Open the page and try "
                "again there."
            ))  # fmt: skip
        if self.asker is None:
            self.not_authenticated()
            return
        allowed = {Kind.PERSON} | ({Kind.NOTEBOOK} if self.access is Access.NOTEBOOK else set())
        if self.asker.kind not in allowed:
            self.refuse(403, "not-allowed", self._why_not(self.asker))

    def not_authenticated(self) -> None:
        """Answer somebody whom the hub does not know."""
        raise NotImplementedError

    def _why_not(self, asker: Asker) -> str:
        if asker.kind is Kind.NOTEBOOK:
            return self.words.text(
                "The token of a notebook reaches what is about its own server only."
            )
        return self.words.text("This account has no access to the GPU service.")

    async def head(self, *arguments: str) -> None:
        """Answer as to GET, without the body."""
        answer = self.get(*arguments)
        if answer is not None:
            await answer

    def options(self, *_arguments: str) -> None:
        """Say which methods there are. Other origins are allowed none."""
        self.set_header("Allow", self._allowed())
        self.set_status(204)

    def _allowed(self) -> str:
        own = type(self).get is not RequestHandler.get
        return "GET, HEAD, OPTIONS" if own else "OPTIONS"

    # Questions

    def parameters(self) -> Any:
        """Read the query parameters by this route's model; unknown or wrong ones are refused."""
        try:
            return parse_query(self.query, self.request.query_arguments, self.words)
        except InvalidQueryError as error:
            self.refuse(400, str(error.reason.code), self.words.reason(error.reason))

    async def ask(self, question: Callable[..., Any], *arguments: object) -> Any:
        """Ask the ledger."""
        try:
            return await self.service.books.read(question, *arguments)
        except LedgerAwayError:
            why = reason(Code.LEDGER_AWAY)
            self.refuse(503, str(why.code), self.words.reason(why), RETRY_SECONDS)

    def hub_id(self) -> str:
        """Return the hub's id; without it nobody's own leases can be told."""
        if self.service.hub_id is None:
            why = reason(Code.LEDGER_AWAY)
            self.refuse(503, str(why.code), self.words.reason(why), RETRY_SECONDS)
        return self.service.hub_id

    # Errors

    def refuse(
        self, status: int, code: str, message: str, retry_seconds: int | None = None
    ) -> NoReturn:
        """End the request with an error."""
        raise RefusedError(status, code, message, retry_seconds)

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        """Write down what was not expected only."""
        if not isinstance(value, RefusedError):
            super().log_exception(typ, value, tb)

    def _request_summary(self) -> str:
        """Name the request for the log without its query: a log-in's way back has a code in it."""
        return f"{self.request.method} {self.request.path}"

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer with an error in the form that this kind of handler has."""
        error = kwargs.get("exc_info", (None, None, None))[1]
        if not isinstance(error, RefusedError):
            error = self._unexpected(status_code, error)
        self.set_status(error.status)
        retry_at = None
        if error.retry_seconds is not None:
            self.set_header("Retry-After", str(error.retry_seconds))
            retry_at = self.service.clock() + timedelta(seconds=error.retry_seconds)
        if error.status == 405:
            self.set_header("Allow", self._allowed())
        if error.status == 401:
            self.set_header("WWW-Authenticate", "token")
        self.show_error(error, retry_at)

    def _unexpected(self, status: int, error: BaseException | None) -> RefusedError:
        words = self.words
        if isinstance(error, HTTPError) and status == 404:
            return RefusedError(404, "not-found", words.text("There is nothing here."))
        if isinstance(error, HTTPError) and status == 405:
            return RefusedError(
                405, "method-not-allowed",
                words.text("{method} is not possible here.", method=self.request.method or "?"),
            )  # fmt: skip
        if isinstance(error, HTTPError) and status < 500:
            return RefusedError(
                status, "bad-request", words.text("This request cannot be understood.")
            )
        why = reason(Code.INTERNAL)
        return RefusedError(500, str(why.code), words.reason(why))

    def show_error(self, error: RefusedError, retry_at: datetime | None) -> None:
        """Write the body of an error."""
        raise NotImplementedError


class APIHandler(Handler):
    """A route of the REST API: JSON, never a redirect."""

    answer: ClassVar[type[BaseModel] | None] = None
    summary: ClassVar[str] = ""

    def not_authenticated(self) -> None:
        """Say that nobody is known here."""
        self.refuse(401, "not-authenticated", self.words.text(
            "Log in at JupyterHub first, or send a token that is still valid."
        ))  # fmt: skip

    def send(self, body: BaseModel) -> None:
        """Write an answer."""
        self.set_header("Content-Type", "application/json")
        self.write(body.model_dump_json().encode())

    def show_error(self, error: RefusedError, retry_at: datetime | None) -> None:
        """Write the error as JSON."""
        detail = schemas.ErrorDetail(code=error.code, message=error.message, retry_at=retry_at)
        self.set_header("Content-Type", "application/json")
        self.finish(schemas.Error(error=detail).model_dump_json().encode())


class UnknownAPIHandler(APIHandler):
    """Whatever is not there under ``api/``."""

    access = Access.OPEN

    async def prepare(self) -> None:
        """Refuse every method alike."""
        self.refuse(404, "not-found", self.words.text("There is nothing here."))
