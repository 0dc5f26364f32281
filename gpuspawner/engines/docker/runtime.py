"""The agent's view of a Docker engine: the server of a lease, by its container."""

from collections.abc import Sequence

from gpuspawner.domain.leases import Evidence, Lease, Source
from gpuspawner.domain.reconciliation import Found
from gpuspawner.engines.docker import labels, listing
from gpuspawner.engines.docker.client import DockerEngine
from gpuspawner.engines.docker.reading import Inspected, read_state
from gpuspawner.engines.look import Absent, EngineError, EngineUnknownError, Look, Running


class DockerRuntime:
    """Looks at containers by id where it is known, by our labels otherwise."""

    def __init__(self, engine: DockerEngine) -> None:
        """Work on one engine."""
        self._engine = engine
        self._given: dict[str, listing.Devices] = {}  # a container's devices never change

    def look(self, lease: Lease) -> Look:
        """Say what runs under a lease.

        Raises:
            EngineUnknownError: nothing is known.
        """
        check_same_engine(self._engine, lease)
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

    def everything(self) -> Sequence[Found]:
        """Return all containers, whoever made them.

        Raises:
            EngineUnknownError: nothing is known.
        """
        summaries = [self._with_own_labels(each) for each in self._engine.containers()]
        present = {summary["Id"] for summary in summaries}
        self._given = {key: value for key, value in self._given.items() if key in present}
        return [
            listing.found(summary, () if listing.has_grant(summary) else self._devices(summary))
            for summary in summaries
        ]

    def look_at(self, run_id: str) -> Look | None:
        """Look at one container by its id."""
        container = self._engine.inspect(run_id)
        return None if container is None else read_state(container)

    def clear_run(self, run_id: str) -> None:
        """Stop and remove one container."""
        self._engine.stop(run_id)
        self._engine.remove(run_id)

    def identity(self) -> str | None:
        """Return the engine's id."""
        return self._engine.identity_now()

    def _devices(self, summary: Inspected) -> listing.Devices:
        """Return what a container was given that has no grant."""
        number = summary["Id"]
        if not listing.runs(summary):
            return ()
        if number in self._given:
            return self._given[number]
        try:
            container = self._engine.inspect(number)
            runtime = self._engine.default_runtime()
        except EngineError as error:
            if isinstance(error, EngineUnknownError) and not error.answered:
                raise
            # Of this one alone nothing is known; a server of ours without a grant got nothing.
            return () if labels.key_of(summary.get("Labels") or {}) else None
        if container is None:
            return ()  # it went meanwhile
        self._given[number] = listing.devices_of(container, runtime)
        return self._given[number]

    def _with_own_labels(self, summary: Inspected) -> Inspected:
        given = summary.get("Labels") or {}
        try:
            own = self._engine.without_images(given, summary.get("ImageID", ""))
        except EngineError as error:
            if isinstance(error, EngineUnknownError) and not error.answered:
                raise
            # Whose this one is cannot be told now, so that nothing may be done about it.
            own = labels.without_images(given, given)
        return {**summary, "Labels": own}

    def _of(self, lease: Lease) -> list[Inspected]:
        return self._engine.find({labels.HUB: lease.key.hub_id, labels.FENCE: str(lease.fence)})


def newest(containers: Sequence[Inspected]) -> Inspected | None:
    """Return the container that counts when there are several: a running one, else the newest."""
    running = [item for item in containers if isinstance(read_state(item), Running)]
    candidates = running or list(containers)
    return candidates[-1] if candidates else None


def end_of_absent(engine: DockerEngine, lease: Lease) -> Evidence:
    """Return how the container of a lease ended that the engine does not have any more.

    Raises:
        EngineUnknownError: the engine does not answer, has it after all, or is another one.
    """
    check_same_engine(engine, lease, anew=True)
    if lease.run_id is None or lease.granted_at is None:
        return Evidence(source=Source.NEVER_RAN)
    if engine.inspect(lease.run_id) is not None:
        # A list that lacks what is there proves nothing about anything.
        raise EngineUnknownError(
            f"container {lease.run_id[:12]} is there and not in the engine's list", answered=True
        )
    evidence = engine.end_of_absent(lease.run_id, lease.granted_at, lease.last_seen_at)
    if evidence.source is Source.LAST_SEEN and lease.running_at is None:
        return Evidence(source=Source.NEVER_RAN)
    return evidence


def check_same_engine(engine: DockerEngine, lease: Lease, *, anew: bool = False) -> None:
    """Raise unless this is the engine that the lease's container was made by.

    Another engine's "there is no such container" is true and no evidence. With ``anew`` it is asked
    again who it is, since it may have been replaced unnoticed.

    Raises:
        EngineUnknownError: it is another one, or it does not answer.
    """
    if lease.engine_id is None:
        return
    identity = engine.identity_now() if anew else engine.identity()
    if identity != lease.engine_id:
        raise EngineUnknownError(
            f"this engine is {identity}, and the container of lease {lease.lease_id} "
            f"was made by {lease.engine_id}: check DOCKER_HOST, or end the lease by force",
            answered=True,
        )
