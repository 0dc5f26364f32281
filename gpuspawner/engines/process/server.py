"""The processes of one server as its hub knows them: a child, or what an earlier hub left."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from gpuspawner.domain.leases import Evidence, ServerKey, Source
from gpuspawner.engines.look import Absent, Finished, Look, Made, Running
from gpuspawner.engines.process.child import Child
from gpuspawner.engines.process.runtime import STOP_GRACE_SECONDS, Family, ProcessRuntime
from gpuspawner.engines.process.table import Identity


class ServerProcesses:
    """Makes, looks at and ends the processes of a server. Calls block; one after the other."""

    def __init__(self, runtime: ProcessRuntime) -> None:
        """Know of no process yet."""
        self._runtime = runtime
        self._child: Child | None = None
        self._known: Identity | None = None
        self._seen_at: datetime | None = None

    @property
    def run_id(self) -> str:
        """The server's own process, for the hub's state; empty when none is known."""
        return self._known.run_id if self._known is not None else ""

    def take_up(self, run_id: str) -> None:
        """Take up the process that an earlier hub started; what names none is no help."""
        with contextlib.suppress(ValueError):
            self._known = Identity.parse(run_id)

    def forget(self) -> None:
        """Forget a process that has ended; a child that runs on is still ours to end."""
        self._known = self._seen_at = None
        if self._child is not None and isinstance(self._child.look(), Finished):
            self._child = None

    def make(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        log: Path,
        settings: Mapping[str, Any],
    ) -> Child:
        """Make the server's process, which waits to be let go; see `Child`."""
        child = Child(
            command,
            environment=environment,
            folder=folder,
            log=log,
            settings=settings,
            table=self._runtime.table,
        )
        self._child, self._known = child, child.identity
        return child

    def look(self, key: ServerKey) -> Look:
        """Look at the server.

        Raises:
            EngineUnknownError: nothing is known.
        """
        if self._child is not None:
            return self._child.look()
        look = self._runtime.look_at_process(self._known) if self._known is not None else None
        if look is None:
            family = self._family(key)
            if family.leader is not None:
                self._known = family.leader.identity
                look = self._runtime.running(family.leader, waits=family.waits)
        if look is not None:
            self._seen_at = datetime.now(UTC)
            return look
        if self._known is None:
            return Absent(evidence=Evidence(source=Source.NEVER_RAN))
        # It ended and was not our child: nobody has its exit code, or its time.
        evidence = Evidence(source=Source.LAST_SEEN, finished_at=self._seen_at)
        return Finished(run_id=self.run_id, evidence=evidence)

    def end(self, key: ServerKey, *, now: bool) -> dict[str, Evidence]:
        """End the server and all that it started, and say how itself ended, by run id.

        An end that nobody saw is left out: the books know better when it was seen alive.

        Raises:
            EngineUnknownError: they cannot be seen, or one of them does not end.
        """
        before = self.look(key)
        self._runtime.end(lambda: self._family(key), 0 if now else STOP_GRACE_SECONDS)
        after = self._child.wait() if self._child is not None else before
        if isinstance(after, Finished) and after.evidence.source is not Source.LAST_SEEN:
            return {after.run_id: after.evidence}
        if isinstance(after, Running):  # an earlier hub's, and we saw it end
            return {after.run_id: Evidence(source=Source.ENGINE, finished_at=datetime.now(UTC))}
        if isinstance(after, Made):
            return {after.run_id: Evidence(source=Source.NEVER_RAN)}
        return {}

    def url(self, key: ServerKey) -> str:
        """Return the address that the server was told to serve; empty when nobody knows.

        Raises:
            EngineUnknownError: nothing is known.
        """
        leader = self._family(key).leader
        told = self._runtime.table.environment(leader) if leader is not None else {}
        url = urlparse(os.fsdecode(told.get(b"JUPYTERHUB_SERVICE_URL", b"")))
        return url.geturl() if url.hostname and url.port else ""

    def _family(self, key: ServerKey) -> Family:
        return self._runtime.family_of_server(key, self._known)
