"""Every route of the service. A test asks each of them with every kind of token."""

import re
from pathlib import Path
from typing import Any, Final

from tornado.routing import Rule
from tornado.web import RequestHandler, URLSpec

from gpuspawner.service import api, pages
from gpuspawner.service.handlers import Access, APIHandler, Service, UnknownAPIHandler
from gpuspawner.service.openapi import document

STATIC: Final = Path(__file__).parent / "static"

API: list[tuple[str, type[APIHandler]]] = [
    ("api/health", api.HealthHandler),
    ("api/me", api.MeHandler),
    ("api/devices", api.DevicesHandler),
    ("api/slices", api.SlicesHandler),
    ("api/leases", api.LeasesHandler),
]


class DocumentHandler(APIHandler):
    """The OpenAPI document."""

    access = Access.OPEN
    summary = "This document."

    async def get(self) -> None:
        """Answer with the document."""
        self.parameters()
        self.write(document(API, self.service.settings.prefix))  # tornado writes a dict as JSON


API.append(("api/openapi.json", DocumentHandler))

PAGES: Final[list[tuple[str, type[RequestHandler]]]] = [
    ("", pages.PageHandler),
    ("oauth_callback", pages.CallbackHandler),
]


def rules(service: Service) -> list[Rule]:
    """Return the routes as tornado takes them."""
    prefix = re.escape(service.settings.prefix)
    given: dict[str, Any] = {"service": service}
    return [
        *(URLSpec(f"{prefix}{re.escape(path)}$", item, given) for path, item in [*API, *PAGES]),
        URLSpec(f"{prefix}api(?:/.*)?$", UnknownAPIHandler, given),
    ]
