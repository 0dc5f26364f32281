"""A site whose engines are scripts: hosts with an agent each, and books that may be exchanged."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gpuspawner.broker.broker import Broker
from gpuspawner.broker.reconcile import Reconciler
from gpuspawner.domain.devices import Device
from gpuspawner.domain.leases import Lease, ServerKey, State
from gpuspawner.domain.profiles import Profile
from gpuspawner.domain.reconciliation import EngineState, Found, GrantCopy, Stray
from gpuspawner.engines.look import Absent, EngineUnknownError, Finished, Look, Running
from gpuspawner.ledger.store import Ledger
from tests.builders import (
    EXITED,
    NEVER_RAN,
    T0,
    WANTED,
    WHOLE,
    after,
    claim,
    device,
    inventory,
    sharing_policy,
)

SILENCE = EngineUnknownError("silence")
LAB = tuple(device(f"g{n}", index=n) for n in range(2))


class Engine:
    """Has what the test puts there; ``fails`` says which calls do, and how."""

    def __init__(self) -> None:
        self.there: dict[str, Found] = {}
        self.fails: dict[str, Exception] = {}
        self.on_list: Callable[[], None] = lambda: None
        self.on_call: Callable[[str], None] = lambda _call: None
        self.left_out: set[str] = set()  # what a list that is short lacks
        self.cleared: list[str] = []
        self.asked: list[str] = []

    def put(self, lease: Lease | None = None, **values: Any) -> Found:
        """Run a container: of a lease as it is labelled by us, or somebody else's."""
        run_id = values.pop("run_id", f"c{len(self.there)}-{id(self) % 1000}")
        given: dict[str, Any] = {"run_id": run_id, "name": run_id, "runs": True, "made_at": T0}
        if lease is not None:
            grant = GrantCopy(profile=lease.profile, slices=lease.slices, image=lease.image)
            devices = tuple(item.uuid for item in lease.slices)
            given |= {"key": lease.key, "fence": lease.fence, "grant": grant, "devices": devices}
        self.there[run_id] = Found(**(given | values))
        return self.there[run_id]

    def _ask(self, call: str) -> None:
        self.asked.append(call)
        self.on_call(call)
        if call in self.fails:
            raise self.fails[call]

    def everything(self) -> Sequence[Found]:
        self._ask("list")
        listed = [each for each in self.there.values() if each.run_id not in self.left_out]
        self.on_list()
        return listed

    def look_at(self, run_id: str) -> Look | None:
        self._ask(f"look {run_id}")
        found = self.there.get(run_id)
        if found is None:
            return None
        if found.runs:
            return Running(run_id=run_id, started_at=after(5))
        return Finished(run_id=run_id, evidence=EXITED)

    def clear_run(self, run_id: str) -> None:
        self._ask(f"clear {run_id}")
        self.cleared.append(run_id)
        self.there.pop(run_id, None)

    def identity(self) -> str | None:
        self._ask("identity")
        return "engine-1"

    def look(self, lease: Lease) -> Look:
        return Absent(evidence=NEVER_RAN)

    def clear(self, lease: Lease) -> None:
        raise AssertionError("the reconciler clears containers, not leases")


class Site:
    """One host with its agent's comparison; ``now`` is the test's to move."""

    def __init__(
        self, ledger: Ledger, host_id: str = "lab", devices: Sequence[Device] = LAB
    ) -> None:
        self.now = after(100)
        self.host_id, self.devices = host_id, devices
        self.engine = Engine()
        self.processes = Engine()
        self.hubs: frozenset[str] = frozenset()
        self.use(ledger)

    def use(self, ledger: Ledger, *, observed: bool = True) -> None:
        """Let hub and agent, both new, work on these books."""
        self.ledger = ledger
        self.hub, self.agent = Broker(ledger, "hub"), Broker(ledger, "agent")
        self.restart()
        self.hub.publish(sharing_policy(), "hub", T0)
        if observed:
            self.observe()

    def restart(self) -> None:
        """Let another agent take over, which remembers nothing."""
        runtimes = {"docker": self.engine, "process": self.processes}
        self.reconciler = Reconciler(
            self.agent, runtimes, self.host_id, lambda: self.hubs, lambda: self.now
        )

    def observe(self) -> None:
        seen = inventory(*self.devices, host_id=self.host_id)
        self.agent.observe(replace(seen, observed_at=self.now), self.now)

    def grant(self, user: str, profile: Profile = WHOLE, **values: Any) -> Lease:
        return self.hub.request(claim(user, profile, **values), self.now)

    def run(self, user: str, profile: Profile = WHOLE, **values: Any) -> Lease:
        """Grant, make and start a server."""
        lease = self.grant(user, profile, **values)
        found = self.engine.put(lease)
        self.hub.bind(lease, found.run_id, self.now, "engine-1")
        self.hub.run(lease, after(5), self.now)
        return self.lease(user)

    def end(self, lease: Lease) -> None:
        """End a lease by the hub's evidence; what the engine still makes is late."""
        self.hub.end(lease.lease_id, WANTED, NEVER_RAN, self.now)

    def lease(self, user: str) -> Lease:
        with self.ledger.read() as books:
            found = books.last_of_server(ServerKey(hub_id="hub", user=user))
        assert found is not None
        return found

    def living(self) -> dict[str, str]:
        """Who holds which devices, and with which container."""
        with self.ledger.read() as books:
            held = books.living(states=frozenset({State.GRANTED, State.RUNNING, State.ENDING}))
        return {each.key.user: ",".join(item.uuid for item in each.slices) for each in held}

    def strays(self) -> list[Stray]:
        with self.ledger.read() as books:
            return [x for each in books.strays().values() for x in each]

    def states(self) -> dict[tuple[str, str], EngineState]:
        with self.ledger.read() as books:
            return {(each.host_id, each.engine): each for each in books.engine_states()}

    def free(self) -> list[str]:
        """Return the devices that somebody could get now."""
        with self.ledger.read() as books:
            return sorted(item.device.uuid for item in books.view(self.now).free_whole())
