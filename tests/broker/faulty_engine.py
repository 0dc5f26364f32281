"""An engine in memory with an engine's troubles: the real client's callers, and nothing behind.

What it has outlives whoever asks. An answer can be an error, be lost, or come while the call is
carried out only later; a list can be short; the engine can be silent, and can be started anew.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from docker.errors import NotFound

from gpuspawner.engines.docker import labels
from gpuspawner.engines.docker.client import DockerEngine
from gpuspawner.engines.look import EngineRefusedError, EngineUnknownError
from gpuspawner.steps import Steps
from tests.builders import T0

NEVER: Final = "0001-01-01T00:00:00Z"
IMAGE: Final = "sha256:lab"
# A call without answer is carried out within an engine's own time limits, or never.
LATE_FOR: Final = timedelta(seconds=110)
CHANGES: Final = ("create_container", "start", "stop", "remove_container")


class Clock:
    """The one clock of a site: the machine moves it."""

    def __init__(self) -> None:
        self.now = T0

    def __call__(self) -> datetime:
        return self.now

    def move(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@dataclass
class Container:
    """A container, ours or somebody else's."""

    run_id: str
    name: str
    labels: dict[str, str]
    devices: list[str]
    created_at: datetime
    status: str = "created"
    started_at: datetime | None = None
    finished_at: datetime | None = None

    @property
    def runs(self) -> bool:
        return self.status == "running"

    @property
    def fence(self) -> int | None:
        return labels.fence_of(self.labels)

    def end(self, now: datetime) -> None:
        self.status, self.finished_at = "exited", now

    def summary(self) -> dict[str, Any]:
        return {
            "Id": self.run_id, "Names": [f"/{self.name}"], "Labels": dict(self.labels),
            "State": self.status, "Created": int(self.created_at.timestamp()), "ImageID": IMAGE,
        }  # fmt: skip

    def inspected(self) -> dict[str, Any]:
        requests = [{"Driver": "nvidia", "DeviceIDs": self.devices}] if self.devices else []
        return {
            "Id": self.run_id, "Name": f"/{self.name}", "Image": IMAGE,
            "Created": self.created_at.isoformat(),
            "Config": {"Labels": dict(self.labels), "Env": []},
            "HostConfig": {"DeviceRequests": requests},
            "State": {
                "Status": self.status, "Running": self.runs, "ExitCode": 0 if self.runs else 1,
                "StartedAt": self.started_at.isoformat() if self.started_at else NEVER,
                "FinishedAt": self.finished_at.isoformat() if self.finished_at else NEVER,
            },
        }  # fmt: skip


@dataclass(frozen=True)
class EngineFault:
    """What becomes of the next call of this kind by hub or agent.

    ``kind``: ``500``, ``silence`` (nothing is done), ``lost`` (done, and the answer is lost),
    ``late`` (done later, and nobody is told), ``short`` (a list lacks what it should have).
    """

    who: str
    method: str
    kind: str


@dataclass
class FaultyEngine:
    """What an engine has, and what goes wrong with it."""

    clock: Clock
    containers: dict[str, Container] = field(default_factory=dict)
    silent: bool = False
    faults: list[EngineFault] = field(default_factory=list)
    late: list[tuple[datetime, Callable[[], Any]]] = field(default_factory=list)
    _deaths: list[tuple[datetime, str]] = field(default_factory=list)
    _count: int = 0
    _was_short: set[str] = field(default_factory=set)

    def call(self, who: str, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Carry out a call of docker-py's by name."""
        if self.silent:
            raise EngineUnknownError("silence")
        work = getattr(self, f"_{method}")
        fault = next((x for x in self.faults if (x.who, x.method) == (who, method)), None)
        if fault is None:
            self._was_short -= {who} if method == "containers" else set()
            return work(*args, **kwargs)
        self.faults.remove(fault)
        if fault.kind == "500":
            raise EngineUnknownError("500", answered=True)
        if fault.kind == "short":
            # One that is short is followed by one that is not: the second look is believed.
            is_second = who in self._was_short
            self._was_short ^= {who}
            return work(*args, **kwargs) if is_second else []
        if fault.kind == "lost":
            work(*args, **kwargs)
        if fault.kind == "late":
            self.late.append((self.clock.now, lambda: work(*args, **kwargs)))
        raise EngineUnknownError(fault.kind)

    # --- what happens to it -----------------------------------------------------------------

    def finish_late(self) -> None:
        """Carry out the oldest call that nobody waits for any more, unless it is too old."""
        self.drop_late()
        if self.late:
            _, work = self.late.pop(0)
            try:
                work()
            except (NotFound, EngineRefusedError):
                return

    def drop_late(self) -> None:
        """Forget the calls that the engine never carried out."""
        self.late = [each for each in self.late if self.clock.now - each[0] < LATE_FOR]

    def restart(self, *, live_restore: bool) -> None:
        """Be started anew: the events are forgotten, and without live-restore all has ended."""
        self._deaths.clear()
        self.late.clear()
        self.silent = False
        if not live_restore:
            for each in self.containers.values():
                if each.runs:
                    each.end(self.clock.now)

    def die(self, container: Container) -> None:
        """Let a container end by itself."""
        container.end(self.clock.now)
        self._deaths.append((self.clock.now, container.run_id))

    def remove_by_hand(self, run_id: str) -> None:
        """Do what ``docker rm -f`` does."""
        self._remove_container(run_id)

    def run_foreign(self, device: str) -> None:
        """Let somebody start a container with a device past the hub."""
        made = self._make("foreign", {}, [device])
        self._start(made.run_id)

    def running(self) -> list[Container]:
        return [each for each in self.containers.values() if each.runs]

    # --- its calls --------------------------------------------------------------------------

    def _info(self) -> dict[str, str]:
        return {"ID": "engine-1", "DefaultRuntime": "runc"}

    def _containers(
        self,
        all: bool = False,  # noqa: A002 - docker-py's name
        filters: Mapping[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        wanted = [text.partition("=")[::2] for text in (filters or {}).get("label", ())]
        return [
            each.summary()
            for each in self.containers.values()
            if all and dict(wanted).items() <= each.labels.items()
        ]

    def _inspect_container(self, name_or_id: str) -> dict[str, Any]:
        return self._found(name_or_id).inspected()

    def _create_container(self, **request: Any) -> dict[str, str]:
        if any(each.name == request["name"] for each in self.containers.values()):
            raise EngineRefusedError("the name is taken", 409)
        requests = request["host_config"].get("DeviceRequests") or []
        devices = [uuid for each in requests for uuid in each["DeviceIDs"]]
        return {"Id": self._make(request["name"], request["labels"], devices).run_id}

    def _make(self, name: str, given: dict[str, str], devices: list[str]) -> Container:
        self._count += 1
        made = Container(
            f"c{self._count}", name if given else f"{name}{self._count}", dict(given), devices,
            self.clock.now,
        )  # fmt: skip
        self.containers[made.run_id] = made
        return made

    def _start(self, run_id: str) -> None:
        found = self._found(run_id)
        if not found.runs:
            found.status, found.started_at = "running", self.clock.now

    def _stop(self, run_id: str, timeout: float = 10) -> None:
        found = self._found(run_id)
        if found.runs:
            self.die(found)

    def _remove_container(self, run_id: str, force: bool = True, v: bool = True) -> None:
        found = self._found(run_id)
        if found.runs:
            self.die(found)
        del self.containers[run_id]

    def _logs(self, run_id: str, **_: Any) -> bytes:
        return b"the last words of " + self._found(run_id).name.encode()

    def _inspect_image(self, reference: str) -> dict[str, Any]:
        return {"Config": {"Labels": {}}}

    def _found(self, name_or_id: str) -> Container:
        for each in self.containers.values():
            if name_or_id in (each.run_id, each.name):
                return each
        raise NotFound(f"no such container: {name_or_id}")

    def deaths(self, run_id: str, since: datetime) -> list[dict[str, Any]]:
        """Return the events of a container's end that it still remembers."""
        return [
            {
                "timeNano": at.timestamp() * 1e9,
                "Actor": {"Attributes": {"exitCode": "1"}},
            }
            for at, whose in self._deaths
            if whose == run_id and at >= since.replace(microsecond=0)
        ]


class FaultyClient(DockerEngine):
    """The client of hub or agent: the real one, whose calls reach the engine in memory."""

    def __init__(self, engine: FaultyEngine, who: str, steps: Steps) -> None:
        super().__init__({}, steps=steps)
        self._engine, self._who = engine, who

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        with self._steps.around(f"engine:{method}"):
            return self._engine.call(self._who, method, args, kwargs)

    def _past_events(self, since: datetime, filters: Mapping[str, Any]) -> list[dict[str, Any]]:
        with self._steps.around("engine:past_events"):
            if self._engine.silent:
                raise EngineUnknownError("silence")
            return self._engine.deaths(filters["container"][0], since)
