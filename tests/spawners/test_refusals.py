"""One refusal, the same in form, page, REST and log (H6)."""

import html
import re
from typing import Any

import pytest

from gpuspawner.broker.broker import StaleGrantError
from gpuspawner.catalogue import Catalogue
from gpuspawner.domain.reasons import (
    HTTP_STATUS,
    KIND_OF,
    VALUES_OF,
    Code,
    Kind,
    Reason,
    RefusedError,
    reason,
)
from gpuspawner.engines.look import EngineRefusedError, EngineUnknownError
from gpuspawner.ledger.store import LedgerAwayError
from gpuspawner.spawners.refusals import Refusal, reason_of

EVIL = "<script>alert(1)</script>\"'&\nnext 100%s %d line"
STATUS = {
    Kind.INVALID: 400, Kind.POLICY: 403, Kind.CONFLICT: 409, Kind.CAPACITY: 429, Kind.AWAY: 503,
    Kind.FAILED: 500, Kind.ENDED: 500,
}  # fmt: skip
LISTS = ("known", "groups", "alternatives")
NUMBERS = ("total", "in_use", "unavailable", "seconds", "devices", "exit_code")


def sample(code: Code) -> Reason:
    values: dict[str, Any] = dict.fromkeys(VALUES_OF[code], EVIL)
    values |= {name: [EVIL] for name in LISTS if name in values}
    values |= {name: 3 for name in NUMBERS if name in values}
    return Reason(code, values)


@pytest.mark.proves("P6")
@pytest.mark.parametrize("locale", ["en", "zh_Hans"])
@pytest.mark.parametrize("code", list(Code))
def test_every_refusal_is_whole(code: Code, locale: str) -> None:
    reader = Catalogue(locale)
    refusal = Refusal(sample(code), reader, retry_seconds=45)

    text = reader.reason(sample(code))
    assert text
    assert refusal.status_code == STATUS[KIND_OF[code]]
    assert refusal.message == refusal.jupyterhub_message == text
    # Both HTML texts: the one that the page reads, and the exception's own.
    assert refusal.message_html == refusal.jupyterhub_html_message
    shown = refusal.jupyterhub_html_message
    assert re.findall(r"<[^>]*>", shown) == ["<br>"] * text.count("\n")
    assert html.unescape(shown.replace("<br>", "\n")) == text
    # The HTTP reason phrase and a metric's label.
    assert refusal.reason == str(code)
    assert refusal.reason.isascii()
    assert "\n" not in refusal.reason
    assert len(refusal.reason) <= 30
    kind = KIND_OF[code]
    if kind in (Kind.CAPACITY, Kind.AWAY):
        assert refusal.headers == {"Retry-After": "45"}
    else:
        assert refusal.headers == {}
    # The log is in English whoever reads the page; a percent sign in it is no format.
    assert Catalogue("en").reason(sample(code)) in str(refusal)


def test_every_kind_that_answers_a_request_has_a_status() -> None:
    assert {**HTTP_STATUS, Kind.ENDED: 500} == STATUS


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RefusedError(reason(Code.LEDGER_AWAY)), reason(Code.LEDGER_AWAY)),
        (LedgerAwayError("locked"), reason(Code.LEDGER_AWAY)),
        (EngineUnknownError("silence"), reason(Code.ENGINE_AWAY)),
        (EngineUnknownError("no space", answered=True),
         reason(Code.CREATE_FAILED, detail="no space")),
        (EngineRefusedError("bad option", 400), reason(Code.CREATE_FAILED, detail="bad option")),
        (EngineRefusedError("x" * 900), reason(Code.CREATE_FAILED, detail="x" * 500)),
        (StaleGrantError("lease 7"), reason(Code.GIVEN_UP)),
        (Refusal(reason(Code.ENGINE_AWAY), Catalogue("en"), 1), reason(Code.ENGINE_AWAY)),
        (KeyError("a bug"), None),
        (TimeoutError(), None),
    ],
)  # fmt: skip
def test_what_an_error_is_called(error: Exception, expected: Reason | None) -> None:
    assert reason_of(error) == expected
