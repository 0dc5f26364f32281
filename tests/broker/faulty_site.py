"""A site whose every part may fail: hub, agent, engine and books, by one clock."""

from collections.abc import Callable

from gpuspawner.agent.agent import Agent
from gpuspawner.agent.forgotten import Forgotten
from gpuspawner.agent.guard import Guard
from gpuspawner.agent.sampler import Sampler
from gpuspawner.broker.broker import Broker
from gpuspawner.broker.reconcile import Reconciler
from gpuspawner.domain.devices import HostInventory
from gpuspawner.domain.leases import Lease
from gpuspawner.domain.reconciliation import Stray
from gpuspawner.engines.docker.runtime import DockerRuntime
from gpuspawner.gpus.origins import Origins
from gpuspawner.ledger.store import Ledger, LedgerAwayError
from tests.broker.faulty_books import Books
from tests.broker.faulty_engine import Clock, Container, FaultyClient, FaultyEngine
from tests.broker.faulty_hub import Hub
from tests.broker.faulty_steps import DeadError, FaultySteps
from tests.builders import device, inventory, mig_device, sharing_policy

LAB = (device("a"), device("b", index=1), mig_device("m", 5, 10, index=2))
UUIDS = tuple(str(each.uuid) for each in LAB)


class NotYetError(Exception):
    """The agent waits for an engine that is silent before it shows a host to new books."""


class Lab:
    """The devices, which are always there."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def look(self, now: object) -> HostInventory:
        return inventory(*LAB, observed_at=self._clock.now)

    def close(self) -> None:
        """Nothing is open."""


class SteppedAgent(Agent):
    """The real agent without its threads: what it would wait for, it does."""

    def _wait_for_comparison(self, *, any_will_do: bool) -> None:
        # The lab is simulated for the sake of shares; its containers count as if it were not.
        self._asked += 1
        self._must_compare.set()
        self.keep_books()
        if self._asked > self._complete_for:
            raise NotYetError


class KnownServers:
    """The hub as the agent asks it."""

    def __init__(self, site: "Site") -> None:
        self._site = site

    def servers(self) -> set[tuple[str, str]]:
        return {(user, "") for user in self._site.database}


class Site:
    """All parts, and what must be true of them together."""

    def __init__(self, books: Books) -> None:
        self.books = books
        self.clock = Clock()
        self.engine = FaultyEngine(self.clock)
        self.database: dict[str, dict[str, object]] = {}
        # Fences of grants that an administrator ended, or made the books forget.
        self.excused: set[int] = set()
        self.is_backed_up = False
        self.looked_at = self.clock.now  # when the truth was looked at last, and which devices
        self.foreign: set[str] = set()  # somebody used past the hub by then
        self.reader = Ledger(books.url)  # to which nothing happens
        self.hub: Hub | None = None
        self.start_hub()
        self.start_agent()
        self.observe()

    def close(self) -> None:
        self.end_processes()
        self.books.close()

    # --- processes ------------------------------------------------------------------------

    def start_hub(self) -> Hub:
        """Return the hub, started if it is dead."""
        if self.hub is not None and not self.hub.is_dead:
            return self.hub
        if self.hub is not None:
            self.hub.kill()
        policy = sharing_policy()
        self.hub = Hub(self.engine, self.books.url, policy, self.database)
        return self.hub

    def start_agent(self) -> None:
        """Start an agent, which knows nothing."""
        self.steps = FaultySteps()
        self.ledger = Ledger(self.books.url, steps=self.steps)
        broker = Broker(self.ledger, "agent")
        runtimes = {"docker": DockerRuntime(FaultyClient(self.engine, "agent", self.steps))}
        sampler = Sampler(broker, Lab(self.clock), Origins(), dict)
        self.agent = SteppedAgent(
            broker, sampler, Guard(broker, runtimes, "lab", self.clock),
            Reconciler(broker, runtimes, "lab", lambda: frozenset({"hub"}), self.clock),
            lambda _: None, self.clock,
        )  # fmt: skip
        self.forgotten = Forgotten(
            broker, KnownServers(self), lambda: frozenset({"hub"}), self.clock,  # type: ignore[arg-type]
        )  # fmt: skip

    def end_processes(self) -> None:
        """End hub and agent at once."""
        if self.hub is not None:
            self.hub.kill()
        self.hub = None
        self.ledger.close()
        self.reader.close()

    def by_agent(self, work: Callable[[], None]) -> None:
        """Let the agent do something; its loops survive what they expect."""
        try:
            work()
        except (LedgerAwayError, NotYetError):
            return
        except DeadError:
            self.ledger.close()
            self.start_agent()

    def keep_books(self) -> None:
        self.by_agent(self.agent.keep_books)

    def observe(self) -> None:
        self.by_agent(self.agent.observe)

    def ask_hub(self) -> None:
        if self.hub is not None and not self.hub.is_dead:
            self.by_agent(self.forgotten.round)

    def compare(self) -> None:
        """Look at everything at the agent's next round."""
        self.agent._must_compare.set()
        self.keep_books()

    def pass_time(self, seconds: float) -> None:
        """Let time pass; no call of the hub is under way for longer than an engine takes."""
        self.clock.move(seconds)
        self.engine.drop_late()
        if seconds > 10 and self.hub is not None and not self.hub.is_dead:
            self.hub.go_on()
            self.hub.cancel_old()
            self.hub.go_on()

    def exchange(self, work: Callable[[], None]) -> None:
        """Do something to the books, which nobody may have open; it takes a while."""
        self.end_processes()
        self.clock.move(120)
        work()
        self.start_hub()
        self.start_agent()

    def put_back(self, *, marked: bool) -> None:
        """Put the copy of the books back; by hand, nobody tells them that they are a copy.

        Then they hand out at once what they hold for free.
        """

        def work() -> None:
            self.books.put_back(self.clock.now, marked=marked)
            if not marked:
                unknown = [each for each in self.ours() if self.of_container(each) is None]
                self.excused |= {each.fence for each in unknown if each.fence is not None}
                self.reader.close()

        self.exchange(work)

    # --- administrators -------------------------------------------------------------------

    def cordon(self, uuid: str, *, off: bool) -> None:
        broker = Broker(self.reader, "cli")
        if off:
            broker.uncordon(uuid, "cho", self.clock.now)
        else:
            broker.cordon(uuid, "fan", "cho", self.clock.now)

    def force_end(self, lease: Lease) -> None:
        """End a lease by an administrator's word, whatever runs."""
        if lease.fence is not None:
            self.excused.add(lease.fence)
        Broker(self.reader, "cli").force_end(lease.lease_id, "gone", "user:cho", self.clock.now)

    # --- what books and engine say ----------------------------------------------------------------

    def living(self) -> list[Lease]:
        with self.reader.read() as books:
            return books.living()

    def of_container(self, container: Container) -> Lease | None:
        """Return the lease whose number a container carries."""
        fence = container.fence
        if fence is None:
            return None
        with self.reader.read() as books:
            return books.leases_by_fence([fence]).get(fence)

    def ours(self) -> list[Container]:
        """Return the running containers that a grant stands behind, but for those excused."""
        return [
            each for each in self.engine.running()
            if each.devices and each.fence is not None and each.fence not in self.excused
        ]  # fmt: skip

    def strays(self) -> dict[str, Stray]:
        """Return what the books show as foreign, by its id."""
        with self.reader.read() as books:
            return {each.run_id: each for group in books.strays().values() for each in group}
