"""The agent's view of a Docker engine: the server of a lease, by its container."""

from collections.abc import Sequence

from gpuspawner.domain.leases import Evidence, Lease, Source
from gpuspawner.engines.docker import labels
from gpuspawner.engines.docker.client import DockerEngine, Inspected, read_state
from gpuspawner.engines.look import Absent, Look, Running


class DockerRuntime:
    """Looks at containers by id where it is known, by our labels otherwise."""

    def __init__(self, engine: DockerEngine) -> None:
        """Work on one engine."""
        self._engine = engine

    def look(self, lease: Lease) -> Look:
        """Say what runs under a lease.

        Raises:
            EngineUnknownError: nothing is known.
        """
        container = self._engine.inspect(lease.run_id) if lease.run_id else None
        if container is None:
            container = newest(self._of(lease))
        if container is not None:
            return read_state(container)
        return Absent(evidence=end_of_absent(self._engine, lease))

    def clear(self, lease: Lease) -> None:
        """Stop and remove every container of a lease."""
        for container in self._of(lease):
            self._engine.stop(container["Id"])
            self._engine.remove(container["Id"])

    def _of(self, lease: Lease) -> list[Inspected]:
        return self._engine.find({labels.HUB: lease.key.hub_id, labels.LEASE: str(lease.lease_id)})


def newest(containers: Sequence[Inspected]) -> Inspected | None:
    """Return the container that counts when there are several: a running one, else the newest."""
    running = [item for item in containers if isinstance(read_state(item), Running)]
    candidates = running or list(containers)
    return candidates[-1] if candidates else None


def end_of_absent(engine: DockerEngine, lease: Lease) -> Evidence:
    """Return how the container of a lease ended that the engine does not have any more."""
    if lease.run_id is None or lease.granted_at is None:
        return Evidence(source=Source.NEVER_RAN)
    evidence = engine.end_of_absent(lease.run_id, lease.granted_at, lease.last_seen_at)
    if evidence.source is Source.LAST_SEEN and lease.running_at is None:
        return Evidence(source=Source.NEVER_RAN)
    return evidence
