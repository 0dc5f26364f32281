"""The ledger as the service reads it: in a few threads, with a time limit, off the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from gpuspawner.ledger.migrate import NewerSchemaError
from gpuspawner.ledger.store import Ledger, LedgerAwayError

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
