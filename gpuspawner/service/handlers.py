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
from gpuspawner.domain.leases import HOLDING
from gpuspawner.domain.reasons import Code, reason
from gpuspawner.ledger.reader import Reader
from gpuspawner.ledger.store import LedgerAwayError
from gpuspawner.service import schemas
from gpuspawner.service.askers import Asker, Kind
from gpuspawner.service.auth import READS, Authenticated, XSRFError
from gpuspawner.service.books import Books
from gpuspawner.service.headers import HEADERS
from gpuspawner.service.hub import Hub, HubAwayError
from gpuspawner.service.pulse import Pulse
from gpuspawner.service.query import InvalidQueryError, parse_query
from gpuspawner.service.settings import Settings

RETRY_SECONDS: Final = 10


class Access(StrEnum):
    """Whom a route is for. Administrators are persons who see more on the same routes."""

    OPEN = "open"
    NOTEBOOK = "notebook"  # a person, or the notebook of one server
    PERSON = "person"
    ADMIN = "admin"


@dataclass(slots=True)
class Service:
    """Everything that handlers use. Made in one place and passed to each."""

    settings: Settings
    auth: HubOAuth
    hub: Hub
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
    """A handler that knows who asks. ``access`` says whom it is for.

    Every method that may change something asks the hub again who it is, whatever is remembered,
    and takes a cookie only with the XSRF value of a page of ours; a handler does nothing for it.
    A path with ``{user}`` (and ``{server}``) is reached by whom these are only. Where a path names
    a thing by its number, the handler calls `only_for` once it knows whose it is.
    """

    access: ClassVar[Access] = Access.PERSON
    query: ClassVar[type[schemas.Query]] = schemas.NoQuery
    streams: ClassVar[bool] = False  # an event stream: no page of another origin may open it

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
        method = self.request.method or ""
        if method not in self.methods():
            raise HTTPError(405)
        if self.access is Access.OPEN or method == "OPTIONS":
            return
        writes = method not in READS
        await self._authenticate(fresh=writes or self.streams, strict=writes or self.streams)
        if self.asker is None:
            self.not_authenticated()
            return
        self._authorise(self.asker)
        if "user" in self.path_kwargs:
            self.only_for(self.path_kwargs["user"], self.path_kwargs.get("server"))
        if writes and self.asker.kind is Kind.NOTEBOOK:
            await self._only_while_it_runs(self.asker)

    async def _authenticate(self, *, fresh: bool, strict: bool) -> None:
        try:
            self.asker = await self.identify(self.service.hub, fresh=fresh, strict=strict)
        except HubAwayError:
            self.refuse_hub_away()
        except XSRFError:
            self.refuse(403, "xsrf", self.words.text(
                "This request did not come from a page of this service. Open the page and try "
                "again there."
            ))  # fmt: skip

    def _authorise(self, asker: Asker) -> None:
        if asker.kind is Kind.NOTEBOOK and self.access is not Access.NOTEBOOK:
            self.refuse(403, "not-allowed", self.words.text(
                "The token of a notebook reaches what is about its own server only."
            ))  # fmt: skip
        if asker.kind is Kind.OTHER:
            self.refuse(403, "not-allowed", self.words.text(
                "This account has no access to the GPU service."
            ))  # fmt: skip
        if self.access is Access.ADMIN and not asker.admin:
            self.refuse(403, "not-allowed", self.words.text("Only administrators may do this."))

    def only_for(self, user: str, server: str | None = None) -> None:
        """Refuse whoever may not act for this user's server; before anything is looked up."""
        if not self.person.may_act_for(user, server):
            self.refuse(403, "not-allowed", self.words.text("This is not yours."))

    async def _only_while_it_runs(self, asker: Asker) -> None:
        """Refuse a notebook whose server holds nothing: the hub may have left its token (H3)."""
        lease = await self.ask(Reader.living_of_server, asker.key(self.hub_id()))
        if lease is None or lease.state not in HOLDING:
            self.refuse(403, "not-running", self.words.text(
                "The server of this notebook does not run with a GPU."
            ))  # fmt: skip

    def not_authenticated(self) -> None:
        """Answer somebody whom the hub does not know."""
        raise NotImplementedError

    @classmethod
    def methods(cls) -> tuple[str, ...]:
        """Return the methods that this route has."""
        own = [
            name
            for name in ("GET", "POST", "PUT", "PATCH", "DELETE")
            if getattr(cls, name.lower()) is not getattr(RequestHandler, name.lower())
        ]
        return (*own, *(["HEAD"] if "GET" in own else []), "OPTIONS")

    async def head(self, **named: str) -> None:
        """Answer as to GET, without the body."""
        answer = self.get(**named)
        if answer is not None:
            await answer

    def options(self, **_named: str) -> None:
        """Say which methods there are. Other origins are allowed none."""
        self.set_header("Allow", ", ".join(self.methods()))
        self.set_status(204)

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

    def refuse_hub_away(self) -> NoReturn:
        """End the request: it is not known who asks."""
        self.refuse(503, "hub-away", self.words.text(
            "JupyterHub does not answer right now, so it is not known who you are. Your "
            "running servers go on. Try again in a minute."
        ), RETRY_SECONDS)  # fmt: skip

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
            self.set_header("Allow", ", ".join(self.methods()))
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
