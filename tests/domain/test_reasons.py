"""Reasons: every code is complete, and its values are exactly the named ones."""

import re

import pytest

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


@pytest.mark.parametrize("code", Code)
def test_every_code_has_a_kind_and_names_its_values(code: Code) -> None:
    assert KIND_OF[code] in Kind
    made = Reason(code, dict.fromkeys(VALUES_OF[code], 1))
    assert made.kind is KIND_OF[code]
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", code)


def test_no_code_has_two_kinds_and_no_table_has_strangers() -> None:
    assert set(KIND_OF) == set(VALUES_OF) == set(Code)


def test_every_answer_to_a_request_has_a_status_and_an_ending_has_none() -> None:
    assert set(HTTP_STATUS) == set(Kind) - {Kind.ENDED}
    assert HTTP_STATUS[Kind.CAPACITY] == 429
    assert HTTP_STATUS[Kind.POLICY] == 403
    assert len(set(HTTP_STATUS.values())) == len(HTTP_STATUS)


@pytest.mark.parametrize("values", [{}, {"since": None, "more": 1}, {"until": None}])
def test_values_are_exactly_those_that_the_code_names(values: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=re.escape("inventory-away takes the values ['since']")):
        Reason(Code.INVENTORY_AWAY, values)


def test_a_refusal_carries_its_reason_and_says_it_in_the_log() -> None:
    error = RefusedError(reason(Code.INVENTORY_AWAY, since=None))
    assert error.reason == Reason(Code.INVENTORY_AWAY, {"since": None})
    assert str(error) == "inventory-away: {'since': None}"
