"""A lab at work, and answers held against the document."""

import jsonschema
import pytest

from gpuspawner.domain.reasons import RefusedError
from tests.builders import ML_SHARE, PAIR, SMALL_MIG, VIS_SHARE, WHOLE
from tests.service.conftest import Site


def lab(site: Site) -> None:
    """Three people at work, and some ends."""
    site.grant("ada")
    site.grant("ada", ML_SHARE, "thesis")
    site.grant("ben", SMALL_MIG)
    site.end(site.grant("cho", VIS_SHARE))
    site.end(site.grant("ada", WHOLE, "old"))
    with pytest.raises(RefusedError):
        site.grant("ben", PAIR, "more")


async def document(site: Site) -> dict:
    return (await site.ask("api/openapi.json")).body


def validate(document: dict, path: str, status: int, body: object) -> None:
    answers = document["paths"][f"/{path}"]["get"]["responses"]
    schema = answers[str(status)]["content"]["application/json"]["schema"]
    jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(body)
