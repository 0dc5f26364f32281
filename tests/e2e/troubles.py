"""What goes wrong at a site, for an agent to repair; and which of its steps each leads it to."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import docker.types

from gpuspawner.domain.endings import START_MARGIN
from gpuspawner.domain.leases import Claim, Evidence, Lease, ServerKey, Source, State
from gpuspawner.domain.policy import parse_policy
from gpuspawner.domain.reasons import Code, reason
from gpuspawner.engines.docker import labels
from gpuspawner.ledger.store import LedgerAwayError
from gpuspawner.steps import NAMES
from tests.e2e.drills import REPAIR_SECONDS, SHARED, DrillSite, OwnAgent, unique
from tests.e2e.lab import PROFILES
from tests.rig.processes import wait_for

_IDLE = ["python3", "-c", "import signal; signal.signal(15, lambda *_: exit()); signal.pause()"]
_AFTER_REPAIR_SECONDS = 3  # in which an agent comes to what it does after a repair


@dataclass
class Troubles:
    """Makes what goes wrong at a site, each with a new person, and says when it is repaired."""

    site: DrillSite
    image: str
    agent: OwnAgent
    _count: int = field(default=0, init=False)
    _unfinished: list[int] = field(default_factory=list, init=False)

    @property
    def kinds(self) -> dict[str, Callable[[], Callable[[], bool]]]:
        """Each makes its trouble and returns a look that says whether it is repaired."""
        return {
            "removed": self.removed, "expired": self.expired, "unrecorded": self.unrecorded,
            "late": self.late, "unknown": self.unknown, "stray": self.stray,
        }  # fmt: skip

    def lead_to(self, order: str, kind: str) -> Callable[[], bool]:
        """Make a trouble, again if need be, until the agent has come to an order's step by it.

        Some steps it comes to by chance alone: whether it looks at a server before that is gone.
        """
        drill = self.site.drill
        for _ in range(8):
            try:
                is_repaired = self.kinds[kind]()
            except LedgerAwayError:
                if not drill.is_done(order):
                    raise
                return lambda: True  # it stands there already, and nobody can write meanwhile
            looks = (lambda: drill.is_done(order), is_repaired)
            wait_for(f"{kind} to be repaired, or order {order}",
                     lambda looks=looks: any(look() for look in looks), REPAIR_SECONDS)  # fmt: skip
            with contextlib.suppress(TimeoutError):
                drill.wait(order, _AFTER_REPAIR_SECONDS)
                return is_repaired
        raise TimeoutError(f"order {order} is not reached by {kind}:\n{self.agent.log()}")

    def removed(self) -> Callable[[], bool]:
        """A running server's container is removed by hand."""
        lease, container = self._server(run=True)
        with contextlib.closing(self.site.lab.engine.client()) as client:
            client.remove_container(container, force=True)
        return lambda: self._is_over(lease)

    def expired(self) -> Callable[[], bool]:
        """A hub died between making a container and starting it, long ago."""
        lease, _ = self._server(bind=False, started=False, left=timedelta())
        return lambda: self._is_over(lease)

    def unrecorded(self) -> Callable[[], bool]:
        """A hub died between starting a container and writing that down, long ago."""
        lease, container = self._server(bind=False, left=timedelta())

        def look() -> bool:
            present = self._lease(lease)
            return (present.state, present.run_id) == (State.RUNNING, container)

        return look

    def late(self) -> Callable[[], bool]:
        """A container runs on by a grant that an administrator ended by force."""
        lease, container = self._server(run=True)
        self.site.lab.broker.force_end(lease.lease_id, "drill", "admin:drill", datetime.now(UTC))
        return lambda: self._is_gone(container)

    def unknown(self) -> Callable[[], bool]:
        """A server runs by a grant that the books do not have."""
        lease = self._grant()
        self.site.lab.broker.end(
            lease.lease_id, reason(Code.GIVEN_UP), Evidence(source=Source.NEVER_RAN),
            datetime.now(UTC),
        )  # fmt: skip
        lost = replace(lease, fence=(lease.fence or 0) + 1_000_000)
        self._container(lost)

        def look() -> bool:
            with self.site.lab.ledger.read() as books:
                found = books.leases_by_fence([lost.fence or 0])
            return [x.state for x in found.values()] == [State.RUNNING]

        return look

    def stray(self) -> Callable[[], bool]:
        """Somebody starts a container with a GPU past the hub."""
        uuid = self.site.lab.inventory.devices[3].uuid
        with contextlib.closing(self.site.lab.engine.client()) as client:
            config = client.create_host_config(
                device_requests=[docker.types.DeviceRequest(
                    driver="nvidia", device_ids=[uuid], capabilities=[["gpu"]])],
            )  # fmt: skip
            made = client.create_container(self.image, _IDLE, host_config=config)["Id"]
            client.start(made)

        def look() -> bool:
            with self.site.lab.ledger.read() as books:
                strays = books.strays()
            return made in {each.run_id for group in strays.values() for each in group}

        return look

    def clear(self) -> None:
        """Remove all containers but the healthy user's, and wait until the books know it."""
        keep = self.site._ben_container()
        with contextlib.closing(self.site.lab.engine.client()) as client:
            for each in client.containers(all=True):
                if each["Id"] != keep:
                    client.remove_container(each["Id"], force=True)
        for number in self._unfinished:
            self.site.lab.broker.force_end(number, "drill", "admin:drill", datetime.now(UTC))
        self._unfinished.clear()

        def look() -> bool:
            with self.site.lab.ledger.read() as books:
                strays = [each for group in books.strays().values() for each in group]
            return not strays and [x.key.user for x in self.site.lab.living()] == ["ben"]

        wait_for("the books to be clear", look, REPAIR_SECONDS)

    def _grant(self, left: timedelta = timedelta(minutes=10)) -> Lease:
        """Grant a share; an agent sees to its server by itself after the time that is left."""
        self._count += 1
        profiles = parse_policy(PROFILES, SHARED).profiles
        share = next(each for each in profiles if each.name == "share")
        with self.site.lab.ledger.read() as books:
            hub_id = books.living()[0].key.hub_id
        key = ServerKey(hub_id=hub_id, user=f"planted{self._count}")
        asked_at = datetime.now(UTC) - 2 * START_MARGIN
        seconds = int((START_MARGIN + left).total_seconds())
        return self.site.lab.broker.request(
            Claim(key=key, profile=share, start_seconds=seconds), asked_at
        )

    def _server(
        self,
        *,
        bind: bool = True,
        started: bool = True,
        run: bool = False,
        left: timedelta = timedelta(minutes=10),
    ) -> tuple[Lease, str]:
        lease = self._grant(left)
        container = self._container(lease, started=started)
        now = datetime.now(UTC)
        try:
            if bind:
                self.site.lab.broker.bind(lease, container, now, self._engine_id())
            if run:
                self.site.lab.broker.run(lease, now, now)
        except LedgerAwayError:
            self._unfinished.append(lease.lease_id)
            raise
        return lease, container

    def _engine_id(self) -> str:
        with contextlib.closing(self.site.lab.engine.client()) as client:
            return client.info()["ID"]

    def _container(self, lease: Lease, *, started: bool = True) -> str:
        with contextlib.closing(self.site.lab.engine.client()) as client:
            config = client.create_host_config(
                device_requests=[docker.types.DeviceRequest(
                    driver="nvidia", device_ids=[x.uuid for x in lease.slices],
                    capabilities=[["gpu"]])],
            )  # fmt: skip
            marks = labels.labels_of(lease.key, lease)
            with self.agent.held():  # one that is only made would be cleared away
                made = client.create_container(self.image, _IDLE, labels=marks, host_config=config)[
                    "Id"
                ]
                if started:
                    client.start(made)
        return made

    def _lease(self, lease: Lease) -> Lease:
        with self.site.lab.ledger.read() as books:
            found = books.lease(lease.lease_id)
        assert found is not None
        return found

    def _is_over(self, lease: Lease) -> bool:
        over = self._lease(lease).state is State.ENDED
        return over and lease.key.user not in self.site.listed().values()

    def _is_gone(self, container: str) -> bool:
        return container not in self.site.listed()


def steps_of_agent(site: DrillSite, agent: Any, troubles: Troubles) -> dict[str, str]:
    """The agent's steps, each with the trouble that leads it there; none for its daily round."""
    mark = site.drill.mark()
    agent.start()
    wait_for("a round", lambda: site.drill.trace("agent", mark).count("engine:info:after") or None)
    names = dict.fromkeys(unique(site.drill.trace("agent", mark)), "")
    for kind, make in troubles.kinds.items():
        mark = site.drill.mark()
        is_repaired = make()
        wait_for(f"{kind} to be repaired", is_repaired, REPAIR_SECONDS)
        for name in unique(site.drill.trace("agent", mark)):
            names.setdefault(name, kind)
        troubles.clear()
    agent.kill()
    assert names.keys() <= NAMES
    return names
