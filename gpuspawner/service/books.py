"""The ledger as the service reads it: in a few threads, with a time limit, off the event loop."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from gpuspawner.domain.devices import HostInventory
from gpuspawner.domain.pool import FRESH_FOR
from gpuspawner.ledger.migrate import NewerSchemaError
from gpuspawner.ledger.reader import Reader
from gpuspawner.ledger.store import Ledger, LedgerAwayError

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_THREADS: Final = 4


class Books:
    """Reads of one ledger for the whole service.

    Whatever is wrong with the ledger, also a damaged file or a newer schema, is the same to a
    reader of a page: it is away, and the log says why.
    """

    def __init__(self, ledger: Ledger | None, *, limit_seconds: float = 8.0) -> None:
        """Take the ledger; None when its address was wrong, which the log has said."""
        self._ledger = ledger
        self._limit_seconds = limit_seconds
        self._threads = ThreadPoolExecutor(_THREADS, "ledger")

    @property
    def file(self) -> Path | None:
        """The file of a SQLite ledger."""
        if self._ledger is None or self._ledger.url.get_backend_name() != "sqlite":
            return None
        assert self._ledger.url.database is not None
        return Path(self._ledger.url.database)

    async def read(self, question: Callable[..., Result], *args: object) -> Result:
        """Ask one question of one consistent view.

        Raises:
            LedgerAwayError: no answer within the time limit, or none at all.
        """
        return await self.call(self._ask, question, *args)

    async def call(self, work: Callable[..., Result], *args: object) -> Result:
        """Do blocking work in one of the threads, within the time limit.

        Raises:
            LedgerAwayError: the time limit is over; the work's own thread ends when it can.
        """
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._threads, partial(work, *args))
        try:
            # Not wait_for: in Python 3.11 it may swallow that the caller was cancelled.
            async with asyncio.timeout(self._limit_seconds):
                return await future
        except TimeoutError:
            raise LedgerAwayError(
                f"the ledger did not answer within {self._limit_seconds:g} seconds"
            ) from None

    def _ask(self, question: Callable[..., Result], *args: object) -> Result:
        if self._ledger is None:
            raise LedgerAwayError("the ledger's address is wrong: see the beginning of the log")
        try:
            with self._ledger.read() as books:
                return question(books, *args)
        except (SQLAlchemyError, NewerSchemaError, OSError) as error:
            cause = getattr(error, "orig", None) or error
            raise LedgerAwayError(f"the ledger cannot be read: {cause}") from error

    def close(self) -> None:
        """Take no more questions; those under way end in their threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._ledger is not None:
            self._ledger.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAge:
    """How old a host's last report is."""

    age_seconds: float
    simulated: bool
    trouble: bool

    @property
    def silent(self) -> bool:
        """Whether the host's agent has not reported for so long that nobody watches shares."""
        return self.age_seconds > FRESH_FOR.total_seconds()


@dataclass(slots=True)
class Pulse:
    """What ``health`` answers from: a look every few seconds, so that asking costs nothing."""

    books: Books
    clock: Callable[[], datetime]
    every_seconds: float = 5.0
    ledger: str = "unknown"
    hosts: tuple[HostInventory, ...] = ()
    seen: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await self.look()
            await asyncio.sleep(self.every_seconds)

    async def look(self) -> None:
        """Look once; the log says when the ledger comes or goes."""
        before = self.ledger
        try:
            self.hosts = await self.books.read(Reader.hosts)
            self.ledger = "ok"
        except LedgerAwayError as error:
            self.ledger = "away"
            if before != "away":
                log.error("%s; pages say so until it answers", error)  # noqa: TRY400 - expected
        if before == "away" and self.ledger == "ok":
            log.info("the ledger answers again")
        self.seen.set()

    def ages(self) -> dict[str, HostAge]:
        """Return each host's age by the last look."""
        now = self.clock()
        return {
            host.host_id: HostAge(
                age_seconds=max((now - host.observed_at) / timedelta(seconds=1), 0.0),
                simulated=host.simulated,
                trouble=host.trouble is not None,
            )
            for host in self.hosts
        }
