"""Random lives in a mixed lab, against a model that knows nothing of the rules' code."""

import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpuspawner.broker.broker import Broker, StaleGrantError
from gpuspawner.broker.invariants import broken_promises
from gpuspawner.domain.devices import Device, Mode
from gpuspawner.domain.leases import Claim, Lease, State
from gpuspawner.domain.profiles import Profile
from gpuspawner.domain.reasons import Code, RefusedError
from gpuspawner.domain.slices import Slice
from gpuspawner.ledger.store import Ledger
from tests.builders import (
    EXITED,
    PROFILES,
    T0,
    WANTED,
    after,
    claim,
    device,
    inventory,
    mig_device,
    sharing_policy,
)

pytestmark = pytest.mark.proves("P1", "P3", "R5")

LAB = (device("a"), device("b"), device("c"), mig_device("m", 5, 5, 10))
UUIDS = tuple(str(item.uuid) for item in LAB)
TARGETS = (*UUIDS, "MIG-m-0", "MIG-m-2")
GPU_PROFILES = PROFILES[:-1]  # the last is without GPU
HEADROOM = 512
HOLDING = (State.GRANTED, State.RUNNING, State.ENDING)
SERVERS = tuple((user, server) for user in ("ada", "ben", "cho") for server in ("", "two"))


@dataclass
class Entry:
    """What the model knows of a lease."""

    server: tuple[str, str]
    profile: Profile
    state: State = State.WAITING
    slices: tuple[Slice, ...] = ()


@dataclass
class Model:
    """A site as a small boy would keep it: who has what, and what is there."""

    visible: tuple[Device, ...] = ()
    cordoned: set[str] = field(default_factory=set)
    leases: dict[int, Entry] = field(default_factory=dict)

    def holders(self, uuid: str) -> list[tuple[Slice, Profile]]:
        return [
            (item, entry.profile)
            for entry in self.leases.values()
            if entry.state in HOLDING
            for item in entry.slices
            if item.device_uuid == uuid
        ]

    def candidates(self, profile: Profile) -> list[tuple[str, str | None]]:
        """Return the devices, or device and instance, that could take one of this profile."""
        found: list[tuple[str, str | None]] = []
        for item in self.visible:
            holders = self.holders(item.uuid)
            if item.uuid in self.cordoned:
                continue
            if profile.mode is Mode.WHOLE and not item.partitioned and not holders:
                found.append((item.uuid, None))
            if profile.mode is Mode.INSTANCE:
                taken = {each.unit for each, _ in holders} | self.cordoned
                found += [
                    (item.uuid, each.uuid)
                    for each in item.instances
                    if each.uuid not in taken and profile.instance in (None, each.profile)
                ]
            if profile.mode is Mode.TIME_SLICED and not item.partitioned:
                same = all(other.groups == profile.groups for _, other in holders)
                used = sum(each.memory_mib or 0 for each, _ in holders) + HEADROOM
                if same and used + (profile.memory_mib or 0) <= (item.memory_mib or 0):
                    found.append((item.uuid, None))
        return found

    def may_grant(self, profile: Profile) -> bool:
        return len(self.candidates(profile)) >= profile.count

    def check_grant(self, entry: Entry, lease: Lease) -> None:
        options = self.candidates(entry.profile)
        for item in lease.slices:
            unit = item.unit if item.mode is Mode.INSTANCE else None
            assert (item.device_uuid, unit) in options
            assert item.unit not in {each.unit for each, _ in self.holders(item.device_uuid)}
        assert len({item.slice_id for item in lease.slices}) == entry.profile.count

    def living(self, server: tuple[str, str]) -> int | None:
        for number, entry in self.leases.items():
            if entry.server == server and entry.state is not State.ENDED:
                return number
        return None


class Books(RuleBasedStateMachine):
    """The broker and the model, given the same commands."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp()
        # As two processes of one site: what one writes, the other's next settlement must know.
        url = f"sqlite:///{self.folder}/ledger.sqlite"
        self.ledgers = [Ledger(url), Ledger(url)]
        self.ledger = self.ledgers[0]
        self.calls = 0
        self.model = Model()
        self.seconds = 0.0
        self.last_fence = 0

    def teardown(self) -> None:
        for ledger in self.ledgers:
            ledger.close()
        shutil.rmtree(self.folder)

    @property
    def broker(self) -> Broker:
        self.calls += 1
        return Broker(self.ledgers[(0, 0, 1, 0, 1, 1, 1)[self.calls % 7]], "test")

    @property
    def now(self) -> datetime:
        self.seconds += 0.01  # no observation gets old: that is another test's matter
        return after(self.seconds)

    def read(self, number: int) -> Lease:
        with self.ledger.read() as books:
            lease = books.lease(number)
        assert lease is not None
        return lease

    def ask(self, asked: Claim) -> tuple[int, Code | None]:
        """Return the number of the lease, and why it was refused, if it was."""
        code = None
        try:
            self.broker.request(asked, self.now)
        except RefusedError as error:
            code = error.reason.code
        with self.ledger.read() as books:
            lease = books.last_of_server(asked.key)
        assert lease is not None
        return lease.lease_id, code

    def settled(self, *, may_not_wait: int | None = None) -> None:
        """Follow a settlement in the model: in order, whoever can get something has got it."""
        for number, entry in sorted(self.model.leases.items()):
            if entry.state is not State.WAITING:
                continue
            lease = self.read(number)
            if self.model.may_grant(entry.profile):
                assert lease.state is State.GRANTED, (number, entry.profile.name)
                self.model.check_grant(entry, lease)
                assert (lease.fence or 0) > self.last_fence
                self.last_fence = lease.fence or 0
                entry.state, entry.slices = State.GRANTED, lease.slices
            else:
                expected = State.ENDED if number == may_not_wait else State.WAITING
                assert lease.state is expected, (number, entry.profile.name)
                entry.state = expected

    @initialize()
    def open(self) -> None:
        self.broker.publish(sharing_policy(), "hub", T0)
        self.see(LAB)

    def see(self, devices: Iterable[Device]) -> None:
        now = self.now
        self.model.visible = tuple(devices)
        self.broker.observe(inventory(*self.model.visible, observed_at=now), now)
        self.settled()

    @rule(
        server=st.sampled_from(SERVERS),
        profile=st.sampled_from(GPU_PROFILES),
        may_wait=st.booleans(),
    )
    def request(self, server: tuple[str, str], profile: Profile, may_wait: bool) -> None:
        user, name = server
        asked = claim(user, profile, name, may_wait=may_wait)
        living = self.model.living(server)
        number, code = self.ask(asked)
        if living is not None:
            assert code is Code.SERVER_HOLDS
            return
        assert code in (None, Code.ALL_IN_USE, Code.NOTHING_FITS)
        assert number not in self.model.leases
        self.model.leases[number] = Entry(server, profile)
        self.settled(may_not_wait=None if may_wait else number)

    @precondition(lambda self: self.model.leases)
    @rule(data=st.data(), step=st.sampled_from(("bind", "run", "stale")))
    def start(self, data: st.DataObject, step: str) -> None:
        number = data.draw(st.sampled_from(sorted(self.model.leases)))
        entry, lease = self.model.leases[number], self.read(number)
        allowed = [State.GRANTED] if step == "bind" else [State.GRANTED, State.RUNNING]
        if step == "stale":
            lease, allowed = replace(lease, fence=0), []
        try:
            if step == "bind":
                self.broker.bind(lease, f"run-{number}", self.now)
            else:
                self.broker.run(lease, self.now, self.now)
        except StaleGrantError:
            assert entry.state not in allowed
            return
        assert entry.state in allowed
        if step == "run":
            entry.state = State.RUNNING

    @precondition(lambda self: self.model.leases)
    @rule(data=st.data())
    def detach(self, data: st.DataObject) -> None:
        self.broker.detach(data.draw(st.sampled_from(sorted(self.model.leases))), self.now)

    @precondition(lambda self: self.model.leases)
    @rule(data=st.data(), times=st.integers(1, 2))
    def want_end(self, data: st.DataObject, times: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.model.leases)))
        for _ in range(times):
            self.broker.want_end(number, WANTED, self.now)
        entry = self.model.leases[number]
        if entry.state is State.WAITING:
            entry.state = State.ENDED
        elif entry.state is not State.ENDED:
            entry.state = State.ENDING

    @precondition(lambda self: self.model.leases)
    @rule(data=st.data(), times=st.integers(1, 2))
    def end(self, data: st.DataObject, times: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.model.leases)))
        already = self.model.leases[number].state is State.ENDED
        for _ in range(times):
            self.broker.end(number, WANTED, EXITED, self.now)
        self.model.leases[number].state = State.ENDED
        if not already:
            self.settled()

    @rule(uuid=st.sampled_from(TARGETS))
    def cordon(self, uuid: str) -> None:
        self.broker.cordon(uuid, "fan", "cho", self.now)
        self.model.cordoned.add(uuid)

    @precondition(lambda self: self.model.cordoned)
    @rule(data=st.data())
    def uncordon(self, data: st.DataObject) -> None:
        target = data.draw(st.sampled_from(TARGETS))
        assert self.broker.uncordon(target, "cho", self.now) == (target in self.model.cordoned)
        if target in self.model.cordoned:
            self.model.cordoned.discard(target)
            self.settled()

    @rule(missing=st.sets(st.sampled_from(UUIDS), max_size=2))
    def observe(self, missing: set[str]) -> None:
        self.see(item for item in LAB if item.uuid not in missing)

    @rule()
    def settle(self) -> None:
        self.broker.settle(self.now)

    @invariant()
    def promises_hold(self) -> None:
        assert broken_promises(self.ledger) == []

    @invariant()
    def the_books_say_what_the_model_says(self) -> None:
        with self.ledger.read() as books:
            states = {lease.lease_id: lease.state for lease in books.recent(limit=1000)}
            holds = {(hold.lease_id, hold.slice) for hold in books.holds()}
        assert states == {number: entry.state for number, entry in self.model.leases.items()}
        assert holds == {
            (number, item)
            for number, entry in self.model.leases.items()
            if entry.state in HOLDING
            for item in entry.slices
        }


Books.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestBooks = Books.TestCase
