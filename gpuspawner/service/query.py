"""Query parameters, judged by a model: a refusal names the key, what was expected and what came."""

import types
import typing
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from gpuspawner.catalogue import Catalogue
from gpuspawner.domain.reasons import Code, Reason, reason
from gpuspawner.service.schemas import Query

Parsed = TypeVar("Parsed", bound=Query)

# A page of the hub sends this one along with requests by cookie; it is no parameter of ours.
_NOT_OURS: Final = "_xsrf"


class InvalidQueryError(Exception):
    """A parameter is unknown, or its value is wrong."""

    def __init__(self, why: Reason) -> None:
        super().__init__(str(why.code))
        self.reason = why


def parse_query(
    model: type[Parsed], arguments: Mapping[str, list[bytes]], words: Catalogue
) -> Parsed:
    """Read raw arguments by a model.

    Raises:
        InvalidQueryError: with the first thing that is wrong.
    """
    values: dict[str, Any] = {}
    for key, raw in arguments.items():
        if key == _NOT_OURS:
            continue
        field = model.model_fields.get(key)
        if field is None:
            known = list(model.model_fields)
            raise InvalidQueryError(reason(Code.OPTION_UNKNOWN, key=_short(key), known=known))
        texts = [_decoded(key, item, words) for item in raw]
        if typing.get_origin(field.annotation) is list:
            values[key] = texts
        elif len(texts) == 1:
            values[key] = texts[0]
        else:
            expected = words.text("given once")
            raise _wrong(key, expected, ", ".join(texts))
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = str(first["loc"][0])
        raise _wrong(key, _expected(model, key, words), first["input"]) from None


def _expected(model: type[Query], key: str, words: Catalogue) -> str:
    annotation = model.model_fields[key].annotation
    options = typing.get_args(annotation) or (annotation,)
    inner = [item for item in options if item is not types.NoneType]
    if inner[0] is int:
        return words.text("a whole number above 0") if key == "before" else words.text(
            "a whole number"
        )  # fmt: skip
    if hasattr(inner[0], "__members__"):
        return words.text("one of {values}", values=", ".join(inner[0]))
    return words.text("a text of at most 255 characters")


def _decoded(key: str, raw: bytes, words: Catalogue) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise _wrong(key, words.text("text in UTF-8"), raw.hex()) from None


def _wrong(key: str, expected: str, got: Any) -> InvalidQueryError:
    return InvalidQueryError(
        reason(Code.OPTION_TYPE, key=key, expected=expected, got=f"“{_short(got)}”")
    )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:79] + "…"
