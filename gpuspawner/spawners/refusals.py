"""One helper builds every refusal of a start, so that form, page, REST and log agree.

The spawn form and the failed page read ``jupyterhub_message`` only, REST reads ``message``, and
``reason`` becomes a metric label and the HTTP reason phrase (hub facts H6).
"""

import html

from jupyterhub.spawner import SpawnException

from gpuspawner.broker.broker import StaleGrantError
from gpuspawner.catalogue import Catalogue
from gpuspawner.domain.reasons import (
    HTTP_STATUS,
    Code,
    Kind,
    Reason,
    RefusedError,
    reason,
)
from gpuspawner.engines.look import EngineRefusedError, EngineUnknownError
from gpuspawner.ledger.store import LedgerAwayError


class Refusal(SpawnException):
    """A start that is refused or failed for a reason we know, in the reader's language."""

    def __init__(self, why: Reason, reader: Catalogue, retry_seconds: int) -> None:
        """Render the reason for the reader; the log gets English."""
        self.why = why
        text = reader.reason(why)
        super().__init__(
            text,
            reason=reader.status_reason(why),
            log_message=Catalogue("en").reason(why),
            status_code=HTTP_STATUS.get(why.kind, 500),
        )
        self.jupyterhub_message = text
        escaped = html.escape(text).replace("\n", "<br>")
        self.message_html = self.jupyterhub_html_message = escaped
        self.headers = {}
        if why.kind in (Kind.CAPACITY, Kind.AWAY):
            self.headers["Retry-After"] = str(retry_seconds)


def reason_of(error: BaseException) -> Reason | None:
    """Name an expected failure; None for one that nobody expected."""
    if isinstance(error, RefusedError):
        return error.reason
    if isinstance(error, Refusal):
        return error.why
    if isinstance(error, LedgerAwayError):
        return reason(Code.LEDGER_AWAY)
    if isinstance(error, EngineUnknownError) and not error.answered:
        return reason(Code.ENGINE_AWAY)
    if isinstance(error, EngineRefusedError | EngineUnknownError):
        return reason(Code.CREATE_FAILED, detail=str(error)[:500])
    if isinstance(error, StaleGrantError):
        return reason(Code.GIVEN_UP)
    return None
