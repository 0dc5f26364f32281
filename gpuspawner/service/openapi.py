"""The OpenAPI document, made from the route table and its models."""

import re
from collections.abc import Sequence
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from gpuspawner._version import __version__
from gpuspawner.service import schemas
from gpuspawner.service.handlers import Access, APIHandler

_REF: Final = "#/components/schemas/{model}"
_REFUSALS: Final = {
    "400": "A parameter is unknown or its value is wrong.",
    "401": "Nobody is logged in, or the token is not valid any more.",
    "403": "The hub knows who asks, and this is not for them.",
    "503": "The ledger or the hub does not answer; see Retry-After.",
}


def document(routes: Sequence[tuple[str, type[APIHandler]]], prefix: str) -> dict[str, Any]:
    """Return the document for these routes (path below the prefix, handler)."""
    answers: list[type[BaseModel]] = [
        schemas.Error,
        *(handler.answer for _, handler in routes if handler.answer is not None),
    ]
    _, definitions = models_json_schema(
        [(model, "serialization") for model in dict.fromkeys(answers)], ref_template=_REF
    )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "gpuspawner",
            "version": __version__,
            "description": "What the GPU pool of a JupyterHub does. Read-only.",
        },
        "servers": [{"url": prefix.rstrip("/") or "/"}],
        "paths": {
            f"/{path}": {
                method.lower(): _operation(method.lower(), path, handler)
                for method in handler.methods()
                if method not in ("HEAD", "OPTIONS")
            }
            for path, handler in routes
        },
        "components": {
            "schemas": definitions["$defs"],
            "securitySchemes": {
                "token": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "A token of JupyterHub, as ``token <value>``.",
                }
            },
        },
    }


def _operation(method: str, path: str, handler: type[APIHandler]) -> dict[str, Any]:
    name = re.sub(r"[^a-z]+", "-", path.removeprefix("api/")).strip("-")
    return {
        "operationId": f"{method}-{name}",
        "summary": handler.summary,
        "security": [] if handler.access is Access.OPEN else [{"token": []}],
        "parameters": [*_in_path(path), *_parameters(handler.query)],
        "responses": {
            "200": {
                "description": "The answer.",
                "content": {"application/json": {"schema": _answer(handler)}},
            },
            **{
                status: {
                    "description": text,
                    "content": {
                        "application/json": {"schema": {"$ref": _REF.format(model="Error")}}
                    },
                }
                for status, text in _REFUSALS.items()
                if handler.access is not Access.OPEN or status == "400"
            },
        },
    }


def _answer(handler: type[APIHandler]) -> dict[str, Any]:
    if handler.answer is None:
        return {"type": "object"}
    return {"$ref": _REF.format(model=handler.answer.__name__)}


def _in_path(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)\}", path)
    ]


def _parameters(query: type[schemas.Query]) -> list[dict[str, Any]]:
    schema = query.model_json_schema(ref_template="{model}")
    definitions = schema.get("$defs", {})
    return [
        {
            "name": name,
            "in": "query",
            "required": name in schema.get("required", ()),
            "description": field.pop("description", ""),
            "schema": _inlined(field, definitions),
        }
        for name, field in schema.get("properties", {}).items()
    ]


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    """Put definitions in place of references: parameters have no components of their own."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            return definitions[schema["$ref"]]
        return {key: _inlined(value, definitions) for key, value in schema.items()}
    if isinstance(schema, list):
        return [_inlined(item, definitions) for item in schema]
    return schema
