"""Every route of the service. A test asks each of them with every kind of token."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tornado.routing import Rule
from tornado.web import URLSpec

from gpuspawner.service import api, pages
from gpuspawner.service.handlers import (
    Access,
    APIHandler,
    Handler,
    Service,
    UnknownAPIHandler,
)  # fmt: skip
from gpuspawner.service.openapi import document

STATIC: Final = Path(__file__).parent / "static"

Route = tuple[str, type[Handler]]  # below the prefix; ``{name}`` stands for one part of the path


class DocumentHandler(APIHandler):
    """The OpenAPI document."""

    access = Access.OPEN
    summary = "This document."

    async def get(self) -> None:
        """Answer with the document."""
        self.parameters()
        self.write(document(API, self.service.settings.prefix))  # tornado writes a dict as JSON


API: Final[list[tuple[str, type[APIHandler]]]] = [
    ("api/health", api.HealthHandler),
    ("api/me", api.MeHandler),
    ("api/devices", api.DevicesHandler),
    ("api/slices", api.SlicesHandler),
    ("api/leases", api.LeasesHandler),
    ("api/openapi.json", DocumentHandler),
]

PAGES: Final[list[Route]] = [
    ("", pages.PageHandler),
    ("oauth_callback", pages.CallbackHandler),
]

ROUTES: Final[list[Route]] = [*API, *PAGES]


def rules(service: Service, routes: Sequence[Route] = ROUTES) -> list[Rule]:
    """Return the routes as tornado takes them."""
    prefix = re.escape(service.settings.prefix)
    given: dict[str, Any] = {"service": service}
    return [
        *(URLSpec(f"{prefix}{_pattern(path)}$", item, given) for path, item in routes),
        URLSpec(f"{prefix}api(?:/.*)?$", UnknownAPIHandler, given),
    ]


def _pattern(path: str) -> str:
    # The name of the default server is empty.
    return re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]*)", re.escape(path))
