"""The containers of one server: how they are made, which are its own, and their end."""

import time
from typing import Any, Final

from docker.errors import NotFound

from gpuspawner.domain.leases import Evidence, Lease, Source
from gpuspawner.domain.reasons import Code, RefusedError, reason
from gpuspawner.engines.docker import labels
from gpuspawner.engines.docker.reading import Inspected, read_state
from gpuspawner.engines.docker.runtime import end_of_absent, newest
from gpuspawner.engines.look import (
    Absent,
    EngineRefusedError,
    EngineUnknownError,
    Look,
    Running,
    evidence_of,
)

NAME_TRIES: Final = 8
_SECTIONS: Final = ("DockerSpawner", "GPUDockerSpawner")


class OwnContainers:
    """The part of `GPUDockerSpawner` that makes, finds and ends its server's containers."""

    # What DockerSpawner and `GPUSpawner` give to the class that this is mixed into.
    key: Any
    _site: Any
    log: Any
    config: Any
    server: Any
    internal_ssl: Any
    remove: Any
    _log_name: Any
    object_id: Any
    object_name: Any
    image: Any
    get_ip_and_port: Any
    _in_lane: Any
    _given_up: bool

    _unanswered: Lease | None = None  # whose container was asked for, and no answer came

    def _create(self, request: dict[str, Any], lease: Lease | None) -> Inspected:
        """Create a container, and tell apart who holds its name. Blocks."""
        engine = self._site.engine
        name = request["name"]
        pause = 0.1
        for _ in range(NAME_TRIES):
            if self._given_up:
                raise RefusedError(reason(Code.GIVEN_UP))
            try:
                made = engine.call("create_container", **{**request, "name": name})
                return {"Id": made["Id"], "Name": name}
            except NotFound as error:
                raise RefusedError(reason(Code.IMAGE_MISSING, image=self.image)) from error
            except EngineUnknownError as error:
                self._unanswered = None if error.answered else lease
                raise
            except EngineRefusedError as error:
                if error.status != 409:
                    raise
                holder = engine.inspect(name)
            if holder is None:  # a removal that is not over yet: 409 now, free in a moment
                time.sleep(pause)
                pause *= 2
            elif labels.is_of(engine.own_labels(holder), self.key):
                engine.remove(holder["Id"])
            else:  # another hub's, or nobody's we know: never touched
                name = f"{request['name']}-{self._site.hub_id}"
        raise RefusedError(
            reason(Code.CREATE_FAILED, detail=f"the container name {name} stays taken")
        )

    async def _may_still_come(self, _error: Exception | None) -> bool:
        return await self._in_lane(self._is_unanswered)

    def _is_unanswered(self) -> bool:
        """Whether a create had no answer and shows no container, so that it may come. Blocks."""
        lease = self._unanswered
        if lease is None:
            return False
        return not self._site.engine.find(labels.labels_of(self.key, lease))

    async def get_object(self) -> Inspected | None:
        """Return this server's container, found by our labels, or None when there is none."""
        container = await self._in_lane(self._newest)
        self.object_id = container["Id"] if container else ""
        if container:
            self.object_name = container["Name"].lstrip("/")
        return container

    async def get_url(self) -> str:
        """Return the server's address as the engine knows it; the database may not (H14)."""
        try:
            if await self.get_object() is not None:
                ip, port = await self.get_ip_and_port()
                origin = f"{'https' if self.internal_ssl else 'http'}://{ip}:{port}"
                return origin + self.server.base_url
        except (EngineUnknownError, EngineRefusedError, NotFound, RuntimeError) as error:
            self.log.warning("%s: its address is not known now: %s", self._log_name, error)
        return await super().get_url()  # type: ignore[misc]

    async def remove_object(self) -> None:
        """Remove the container and wait until it is gone."""
        await self._in_lane(self._site.engine.remove, self.object_id)

    async def delete_forever(self) -> None:
        """Remove a container that was kept after its stop; the home volume stays."""
        await self._halt(now=True, clear=True)

    async def _look(self) -> Look:
        container = await self.get_object()
        if container is None:
            return Absent(evidence=Evidence(source=Source.NEVER_RAN))
        return read_state(container)

    async def _halt(self, *, now: bool, clear: bool) -> dict[str, Evidence]:
        return await self._in_lane(self._end_all, now, clear)

    async def _tidy(self) -> None:
        await self._in_lane(self._end_all, True, False)

    def _absence(self, lease: Lease) -> Evidence:
        return end_of_absent(self._site.engine, lease)

    def _newest(self) -> Inspected | None:
        """Return the container that counts: the known one while it runs, else by our labels."""
        known = self._site.engine.inspect(self.object_id) if self.object_id else None
        if known and self._is_mine(known) and isinstance(read_state(known), Running):
            return known
        # Where none is known, a list that shows nothing is believed at the second look.
        return newest(self._mine() or ([] if self.object_id else self._mine()))

    def _mine(self) -> list[Inspected]:
        """Return this server's containers; the one that is known counts without the list too."""
        found = self._site.engine.find(labels.labels_of(self.key, None))
        if self.object_id and self.object_id not in {each["Id"] for each in found}:
            known = self._site.engine.inspect(self.object_id)
            if known is not None and self._is_mine(known):
                found.append(known)
        return found

    def _is_mine(self, container: Inspected) -> bool:
        own = self._site.engine.own_labels(container)
        # By its id also where it has another name on it: its user may have been renamed.
        is_known = container["Id"] == self.object_id and own.get(labels.HUB) == self.key.hub_id
        return is_known or labels.is_of(own, self.key) or self._is_adopted(container)

    def _is_adopted(self, container: Inspected) -> bool:
        """Whether plain DockerSpawner made it for this server: the hub knows it by its id."""
        own_labels = container["Config"]["Labels"] or {}
        return container["Id"] == self.object_id and labels.HUB not in own_labels

    def _is_removed(self, container: Inspected, *, clear: bool) -> bool:
        """Whether a container that has ended is removed.

        One that names a device always is: started again from outside, it would take a slice that
        is somebody else's by then. Of one that plain DockerSpawner made the site may want what
        lies in it, so only the site's own word counts.
        """
        if self._is_adopted(container):
            return self.remove and any("remove" in self.config[each] for each in _SECTIONS)
        return clear or self.remove or labels.LEASE in (container["Config"]["Labels"] or {})

    def _end_all(self, now: bool, clear: bool) -> dict[str, Evidence]:
        """Stop all containers of this server, read how they ended, remove them. Blocks."""
        engine = self._site.engine
        found: dict[str, Evidence] = {}
        for container in self._mine():
            look: Look = read_state(container)
            if isinstance(look, Running):
                engine.stop(container["Id"], 0 if now else 10)
                after = engine.inspect(container["Id"])
                look = read_state(after) if after else look
            evidence = evidence_of(look)
            if self._is_removed(container, clear=clear):
                engine.remove(container["Id"])
            elif isinstance(look, Running):
                raise EngineUnknownError(f"container {container['Id'][:12]} does not stop")
            if evidence is not None:
                found[container["Id"]] = evidence
        return found
