"""Routes that change something, for tests only: the service's own are judged by the same base."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import BaseModel

from gpuspawner.ledger.reader import Reader
from gpuspawner.service import schemas
from gpuspawner.service.handlers import Access, APIHandler
from gpuspawner.service.routes import API, ROUTES, Route

OWN = "api/test-own"
SERVER = "api/test-servers/{user}/{server}"
LEASE = "api/test-leases/{lease_id}"
ADMIN = "api/test-admin"
STREAM = "api/test-stream"


class Done(schemas.Body):
    """What was changed."""

    changes: int


def writing(changes: list[str]) -> list[Route]:
    """Return routes that write into ``changes``, each for somebody else."""

    class Writing(APIHandler):
        answer: ClassVar[type[BaseModel] | None] = Done
        summary = "For tests."

        def note(self, what: str) -> None:
            changes.append(f"{self.person.name} {self.request.method} {what}")
            self.send(Done(changes=len(changes)))

    class OwnHandler(Writing):
        async def post(self) -> None:
            self.note("own")

        put = patch = delete = post

    class ServerHandler(Writing):
        access = Access.NOTEBOOK

        async def post(self, user: str, server: str) -> None:
            self.note(f"{user}/{server}")

    class LeaseHandler(Writing):
        access = Access.NOTEBOOK

        async def delete(self, lease_id: str) -> None:
            lease = await self.ask(Reader.lease, int(lease_id))
            self.only_for(lease.key.user, lease.key.server)
            self.note(lease_id)

    class AdminHandler(Writing):
        access = Access.ADMIN

        async def delete(self) -> None:
            self.note("admin")

    class StreamHandler(Writing):
        streams = True

        async def get(self) -> None:
            self.set_header("Content-Type", "text/event-stream")
            self.write("data: {}\n\n")

    return [
        (OWN, OwnHandler), (SERVER, ServerHandler), (LEASE, LeaseHandler), (ADMIN, AdminHandler),
        (STREAM, StreamHandler),
    ]  # fmt: skip


def with_writing(changes: list[str]) -> Sequence[Route]:
    """Return the service's routes and these."""
    assert set(API) <= set(ROUTES)
    return [*writing(changes), *ROUTES]
