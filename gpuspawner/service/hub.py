"""What the service asks the hub: who a token stands for, and whether the hub answers at all.

Nothing here blocks the loop, each question has a time limit, and only an answer that was
understood is remembered. Whatever else comes (an error page, half an answer, nothing) is the same
to a reader: the hub is away, and the next request asks it again.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Final

from jupyterhub.services.auth import HubOAuth

from gpuspawner.service.askers import Asker, asker_from
from gpuspawner.service.parts import Part, PartState
from gpuspawner.steps import UNWATCHED, Steps

PATIENCE_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 60.0  # each look is a line in the hub's log
LOOK_AGAIN_SECONDS: Final = 10.0  # while it is away

log = logging.getLogger(__name__)


class HubAwayError(Exception):
    """The hub did not say who asks."""


class Hub:
    """Asks the hub on behalf of the whole service, and remembers how it does."""

    def __init__(
        self,
        auth: HubOAuth,
        service: str,
        clock: Callable[[], datetime],
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        steps: Steps = UNWATCHED,
    ) -> None:
        """Take the hub's own client; ``service`` is our name at the hub."""
        self.part = Part(clock)
        self.token_refused = False  # our own: log-ins fail until it is right
        self._auth = auth
        self._service = service
        self._steps = steps
        self.patience_seconds = patience_seconds

    async def who(self, token: str, session_id: str, *, fresh: bool) -> Asker | None:
        """Return whom a token stands for; None when the hub does not know it (any more).

        Args:
            token: what came with the request.
            session_id: the browser's session at the hub, empty without one: a log-out changes it.
            fresh: ask the hub again, whatever is remembered.

        Raises:
            HubAwayError: no answer within the time limit, or one that is not the hub's.
        """
        if not (token.isascii() and token.isprintable()):
            return None  # no token of a hub: its library could not even send it
        key = hashlib.sha256(f"{session_id}\0{token}".encode("utf8", "replace")).hexdigest()
        if not fresh and (known := self._auth.cache.get(key)) is not None:
            assert isinstance(known, Asker)
            return known
        asker = await self._ask(token)
        if asker is None:
            # What other requests with this token would still be told is wrong now.
            self._auth.cache.pop(key, None)
        else:
            self._auth.cache[key] = asker
        return asker

    async def look(self) -> None:
        """Look whether the hub answers, and whether it knows the service's own token."""
        try:
            known = await self._ask(self._auth.api_token)
        except HubAwayError:
            return  # the log and `part` have it
        if known is None and not self.token_refused:
            log.error("the hub does not know this service's own token: nobody can log in here")
        self.token_refused = known is None

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await self.look()
            ok = self.part.state is PartState.OK
            await asyncio.sleep(LOOK_SECONDS if ok else LOOK_AGAIN_SECONDS)

    async def _ask(self, token: str) -> Asker | None:
        try:
            with self._steps.around("hub:who"):
                question = self._auth.user_for_token(token, use_cache=False, sync=False)
                async with asyncio.timeout(self.patience_seconds):
                    model = await question
            asker = None if model is None else asker_from(model, self._service)
        except Exception as error:
            if self.part.become(PartState.DEGRADED):
                log.error("the hub does not answer: %s", _in_words(error))  # noqa: TRY400 - expected
            raise HubAwayError(_in_words(error)) from error
        if self.part.become(PartState.OK):
            log.info("the hub answers")
        return asker


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()
