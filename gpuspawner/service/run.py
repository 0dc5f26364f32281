"""The service as a process: every object is made here, once, and passed on."""

import asyncio
import contextlib
import errno
import logging
import os
import secrets
import signal
import stat
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from tornado.httpserver import HTTPServer
from tornado.web import Application, RequestHandler

from gpuspawner.hubid import read_hub_id
from gpuspawner.ledger.store import DEFAULT_URL, Ledger, LedgerAwayError
from gpuspawner.lifetime import FileLock, Parent
from gpuspawner.service.auth import hub_auth_from
from gpuspawner.service.books import Books
from gpuspawner.service.handlers import Service
from gpuspawner.service.hub import Hub
from gpuspawner.service.life import bind, end_soon, until_done, wait_gone
from gpuspawner.service.pages import NotFoundHandler, StyleHandler
from gpuspawner.service.pulse import Pulse
from gpuspawner.service.routes import ROUTES, STATIC, Route, rules
from gpuspawner.service.settings import settings_from
from gpuspawner.steps import steps_from

log = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 64 * 1024
MAX_HEADER_BYTES: Final = 16 * 1024
_SECRET_FILE: Final = "gpuspawner_service_cookie_secret"  # noqa: S105 - its name, not the secret


def run(environment: Mapping[str, str], parent: Parent | None) -> int:
    """Serve until told to end."""
    # The hub's library writes session ids at this level.
    logging.getLogger("tornado.application").setLevel(logging.WARNING)
    asyncio.run(_serve(environment, parent))
    return 0


async def _serve(environment: Mapping[str, str], parent: Parent | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    running = Running(make_service(environment))
    tasks = running.start()
    if parent is not None:
        tasks.append(loop.create_task(_end_with(parent, stop)))
    await stop.wait()
    log.info("ending")
    end_soon()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await running.close()


async def _end_with(parent: Parent, stop: asyncio.Event) -> None:
    await wait_gone(parent)
    log.warning("the hub that started this service is gone")
    stop.set()


def make_service(
    environment: Mapping[str, str], clock: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> Service:
    """Make what handlers use. Nothing is opened or asked yet."""
    problems: set[str] = set()
    url = environment.get("GPUSPAWNER_LEDGER_URL") or DEFAULT_URL
    steps = steps_from(environment)
    try:
        ledger = Ledger(url, steps=steps)
    except Exception:  # a wrong address is trouble, and never an exit (hub facts H1)
        log.exception("the ledger's address is wrong")
        ledger = None
        problems.add("ledger-address")
    books = Books(ledger)
    settings = settings_from(environment, str(books.file) if books.file else None)
    for address in settings.refused:
        log.error("never listening on the wildcard address %s", address)
        problems.add("address-refused")
    auth = hub_auth_from(environment, settings.prefix, settings.name)
    return Service(
        settings=settings,
        auth=auth,
        hub=Hub(auth, settings.name, clock, steps=steps),
        books=books,
        pulse=Pulse(books, clock),
        templates=Environment(
            loader=PackageLoader("gpuspawner.service"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        ),
        clock=clock,
        problems=problems,
    )


def make_app(service: Service, routes: Sequence[Route] = ROUTES) -> Application:
    """Make the application. The cookie secret is random until the kept one is read."""
    return Application(
        rules(service, routes),
        default_handler_class=NotFoundHandler,
        default_handler_args={"service": service},
        cookie_secret=secrets.token_bytes(32),
        static_path=str(STATIC),
        static_url_prefix=f"{service.settings.prefix}static/",
        static_handler_class=StyleHandler,
        log_function=log_request,
    )


def log_request(handler: RequestHandler) -> None:
    """Write a request down without its query: a log-in's way back has a code in it."""
    status = handler.get_status()
    level = logging.WARNING if status >= 500 else logging.INFO if status >= 400 else logging.DEBUG
    request = handler.request
    log.log(level, "%d %s %s %.0f ms", status, request.method, request.path,
            1000 * request.request_time())  # fmt: skip


class Running:
    """The service at work: its sockets, its looks, its lock."""

    def __init__(self, service: Service) -> None:
        """Take the parts."""
        self._service = service
        self.app = make_app(service)
        self._server = HTTPServer(
            self.app,
            max_body_size=MAX_BODY_BYTES,
            max_header_size=MAX_HEADER_BYTES,
            idle_connection_timeout=120,
            body_timeout=30,
        )
        self._lock: FileLock | None = None
        self.locked = asyncio.Event()  # set while this is the one service of its hub

    def start(self) -> list[asyncio.Task[Any]]:
        """Listen first, then do what may be slow."""
        loop = asyncio.get_running_loop()
        settings = self._service.settings
        tasks: list[asyncio.Task[Any]] = [
            loop.create_task(self._listen(address)) for address in settings.addresses
        ]
        return [
            *tasks,
            loop.create_task(self._service.pulse.run()),
            loop.create_task(self._service.hub.run()),
            loop.create_task(self._open()),
        ]

    async def close(self) -> None:
        """Stop listening and give everything up."""
        self._server.stop()
        self._service.books.close()
        if self._lock is not None:
            self._lock.close()
        # Idle connections end; one that is in the middle of an answer gets a moment for it.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await self._server.close_all_connections()

    async def _listen(self, address: str) -> None:
        port = self._service.settings.port
        problem = f"not-listening:{'loopback' if address.startswith('127.') else 'notebooks'}"
        self._service.problems.add(problem)
        loop = asyncio.get_running_loop()

        async def attempt() -> str | None:
            try:
                # In a thread, for a name may have to be resolved.
                sockets = await loop.run_in_executor(None, bind, address, port)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return "the port is taken by another program"
                return str(error)
            self._server.add_sockets(sockets)
            self._service.problems.discard(problem)
            log.info("listening on %s:%d%s", address, port, self._service.settings.prefix)
            return None

        await until_done(f"listening on {address}:{port}", attempt)

    async def _open(self) -> None:
        """Find what is kept on disk, then become the one service of this hub."""
        problems = self._service.problems
        problems.add("hub-id-unknown")
        if trouble := await self._kept(self._read_secret):
            log.error("log-ins will not outlive this process: %s", trouble)
            problems.add("cookie-secret")
        await until_done("reading the hub's id", partial(self._kept, self._read_hub_id))
        problems.discard("hub-id-unknown")
        await self._take_lock()

    async def _kept(self, work: Callable[[], None]) -> str | None:
        try:
            await self._service.books.call(work)
        except (OSError, ValueError, LedgerAwayError) as error:
            return str(error)
        return None

    def _read_hub_id(self) -> None:
        settings = self._service.settings
        self._service.hub_id = settings.hub_id or read_hub_id(settings.hub_id_file)

    def _read_secret(self) -> None:
        self.app.settings["cookie_secret"] = kept_secret(
            self._service.settings.keep_in / _SECRET_FILE
        )

    async def _take_lock(self) -> None:
        service = self._service
        path = service.settings.keep_in / f"gpuspawner_service-{service.hub_id}.lock"
        self._lock = lock = FileLock(path)
        service.problems.add("another-service")

        async def attempt() -> str | None:
            try:
                taken = await service.books.call(lock.take)
            except (OSError, LedgerAwayError) as error:
                return str(error)
            return None if taken else "another service of this hub runs already"

        await until_done(f"being the one service of this hub ({path.name})", attempt)
        service.problems.discard("another-service")
        self.locked.set()


def kept_secret(path: Path) -> bytes:
    """Return the secret that signs cookies, made at the first use; readable by its owner only.

    Raises:
        OSError: it can neither be read nor made.
    """
    with contextlib.suppress(FileNotFoundError):
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            log.warning("%s: others could read it; a new one is made", path.name)
            path.unlink()
        elif len(secret := path.read_bytes()) >= 32:
            return secret
        else:
            path.unlink()
    secret = secrets.token_hex(32).encode()
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secret)
        with contextlib.suppress(FileExistsError):  # another process was first
            os.link(temporary, path)
    finally:
        temporary.unlink()
    return path.read_bytes()
