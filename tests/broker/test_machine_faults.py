"""Random lives and random faults: real broker, spawners, guard and reconciler against an engine.

Each life is drawn from a seed, and a failing one is printed as the steps that make it, with the
line that plays it again. Lives that must not be left to chance stand at the end of this file.

``GPUSPAWNER_FAULT_LIVES`` says how many lives are tried.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gpuspawner.domain.leases import State
from gpuspawner.domain.reasons import Code
from tests.broker.faulty_books import Books, PostgresBooks, SqliteBooks, write_empty
from tests.broker.faulty_engine import CHANGES, EngineFault
from tests.broker.faulty_hub import ALL, GROUPS, Hub, patched
from tests.broker.faulty_site import UUIDS, Site
from tests.broker.faulty_truth import broken, calm, expect_agreement, stop_all

pytestmark = pytest.mark.proves("P1", "P2", "R5")

LIVES = int(os.environ.get("GPUSPAWNER_FAULT_LIVES", "60"))
USERS = tuple(GROUPS)
PROFILES = ("whole", "whole", "pair", "mig-small", "mig-any", "share", "share")
SOME = st.sampled_from((ALL, ALL, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10))
FEW = st.integers(0, 25)
ENGINE_EVENTS = (
    "turns silent", "does what is late", "does what is late", "restarts",
    "restarts with live-restore", "gets a foreign container", "lets one die", "loses one by hand",
)  # fmt: skip
CALLS = (*CHANGES, *CHANGES, "inspect_container", "containers", "containers")


class FaultyLife(RuleBasedStateMachine):
    """People, troubles, and what must be true all the while."""

    make_books: ClassVar[Callable[[], Books]]
    site: Site

    def __init__(self) -> None:
        super().__init__()
        self.is_sound = False

    @initialize()
    def open(self) -> None:
        self.site = Site(type(self).make_books())

    def teardown(self) -> None:
        if not hasattr(self, "site"):
            return
        try:
            if self.is_sound:
                calm(self.site)
                expect_agreement(self.site)
                assert broken(self.site) == []
                stop_all(self.site)
                assert broken(self.site) == []
        finally:
            self.site.close()

    @property
    def hub(self) -> Hub:
        assert self.site.hub is not None
        return self.site.hub

    def begin(self) -> None:
        """Note that a step is under way; a moment passes."""
        self.is_sound = False
        self.site.clock.move(0.5)

    def hub_lives(self) -> bool:
        return not self.hub.is_dead

    def is_busy(self, user: str) -> bool:
        return user in self.hub.tasks or "" in self.hub.tasks

    # --- people ---------------------------------------------------------------------------

    @precondition(hub_lives)
    @rule(user=st.sampled_from(USERS), profile=st.sampled_from(PROFILES), steps=SOME)
    def start(self, user: str, profile: str, steps: int) -> None:
        self.begin()
        self.ask("start", user, profile)
        self.hub.go_on(steps)

    def ask(self, what: str, user: str, profile: str = "") -> None:
        """Begin what JupyterHub would: one thing at a time for each server."""
        hub = self.hub
        is_idle = user in hub.servers and not self.is_busy(user)
        if what == "start" and user not in hub.servers and not self.is_busy(user):
            share = f"{GROUPS[user][0].rstrip('0123456789')}-share"
            hub.start(user, share if profile == "share" else profile)
        elif what == "stop" and hub.is_starting(user):
            hub.cancel(user)
        elif what == "stop" and is_idle:
            hub.stop(user)
        elif what == "poll" and is_idle:
            hub.poll(user)

    @precondition(hub_lives)
    @rule(user=st.sampled_from(USERS), profile=st.sampled_from(PROFILES))
    def start_at_once(self, user: str, profile: str) -> None:
        self.start(user, profile, ALL)

    @precondition(lambda self: self.hub_lives() and self.hub.servers)
    @rule(user=st.sampled_from(USERS), steps=SOME)
    def stop(self, user: str, steps: int) -> None:
        self.begin()
        self.ask("stop", user)
        self.hub.go_on(steps)

    @precondition(lambda self: self.hub_lives() and self.hub.servers)
    @rule(user=st.sampled_from(USERS), steps=SOME, pick=st.integers(0, 2))
    def poll(self, user: str, steps: int, pick: int) -> None:
        self.begin()
        self.ask("poll", user)
        self.hub.go_on(steps, pick)

    # --- time and the agent ---------------------------------------------------------------

    @rule(seconds=st.sampled_from((0, 0, 6, 40, 160, 340)), compare=st.booleans())
    def time_passes(self, seconds: float, compare: bool) -> None:
        self.begin()
        if seconds:
            self.site.pass_time(seconds)
        self.site.observe()
        (self.site.compare if compare else self.site.keep_books)()
        self.site.ask_hub()

    @rule(
        in_agent=st.booleans(), after=st.integers(0, 6), user=st.sampled_from(USERS),
        what=st.sampled_from(("start", "stop", "poll")), compare=st.booleans(),
    )  # fmt: skip
    def others_will_work_meanwhile(
        self, in_agent: bool, after: int, user: str, what: str, compare: bool
    ) -> None:
        """In the middle of a round or of a hub's step the other one does something."""
        self.begin()
        site = self.site

        def by_agent() -> None:
            (site.compare if compare else site.keep_books)()

        def by_hub() -> None:
            hub = site.hub
            if hub is not None and not hub.is_dead and not hub.is_running():
                self.ask(what, user, "whole")
                hub.go_on()

        if in_agent:
            site.steps.meanwhile = (after, by_hub)
        else:
            self.hub.steps.meanwhile = (after, by_agent)

    # --- processes die --------------------------------------------------------------------

    @rule(of_hub=st.booleans(), after=FEW)
    def a_process_will_die(self, of_hub: bool, after: int) -> None:
        self.begin()
        (self.hub.steps if of_hub else self.site.steps).dies_after = after

    @precondition(lambda self: not self.hub_lives())
    @rule(steps=SOME)
    def the_hub_starts(self, steps: int) -> None:
        self.begin()
        self.site.start_hub().go_on(steps)

    @rule(steps=SOME)
    def the_hub_is_restarted(self, steps: int) -> None:
        self.begin()
        if not self.hub.is_dead:
            self.hub.terminate(steps)
        self.site.start_hub().go_on(steps)

    # --- the engine -----------------------------------------------------------------------

    @rule(
        who=st.sampled_from(("hub", "hub", "agent")),
        method=st.sampled_from(CALLS),
        kind=st.sampled_from(("500", "silence", "lost", "late")),
    )
    def a_call_will_fail(self, who: str, method: str, kind: str) -> None:
        self.begin()
        if method == "containers":
            kind = "short"
        elif method not in CHANGES and kind != "500":
            kind = "silence"
        self.site.engine.faults.append(EngineFault(who, method, kind))

    @rule(what=st.sampled_from(ENGINE_EVENTS), which=st.integers(0, 3))
    def the_engine(self, what: str, which: int) -> None:
        self.begin()
        engine = self.site.engine
        running = engine.running()
        run_id = running[which % len(running)].run_id if running else ""
        if what == "turns silent":
            engine.silent = not engine.silent
        elif what == "does what is late":
            engine.finish_late()
        elif what.startswith("restarts"):
            engine.restart(live_restore=what == "restarts with live-restore")
        elif what == "gets a foreign container":
            engine.run_foreign(UUIDS[which % len(UUIDS)])
        elif what == "lets one die" and running:
            engine.die(engine.containers[run_id])
        elif running:
            engine.remove_by_hand(run_id)

    # --- the books ------------------------------------------------------------------------

    @rule(of_hub=st.booleans(), after=st.integers(0, 8))
    def the_books_will_be_away(self, of_hub: bool, after: int) -> None:
        self.begin()
        (self.hub.steps if of_hub else self.site.steps).away_after = after

    @rule(
        what=st.sampled_from(("backed up", "put back", "put back by hand", "lost")),
        quick=st.booleans(),
    )
    def the_books_are(self, what: str, quick: bool) -> None:
        self.begin()
        books = self.site.books
        if what == "lost":
            self.site.exchange(books.lose)
        elif what == "backed up" or not self.site.is_backed_up:
            self.site.exchange(books.back_up)
            self.site.is_backed_up = True
        else:
            self.site.put_back(marked=what == "put back")
        if quick:
            self.site.observe()
        self.hub.go_on()

    # --- administrators -------------------------------------------------------------------

    @rule(what=st.sampled_from(("cordon", "uncordon", "force")), which=st.integers(0, 3))
    def an_administrator(self, what: str, which: int) -> None:
        self.begin()
        living = self.site.living()
        if what != "force":
            self.site.cordon(UUIDS[which % len(UUIDS)], off=what == "uncordon")
        elif living:
            self.site.force_end(living[which % len(living)])

    # --- what must be true ----------------------------------------------------------------

    @invariant()
    def all_is_sound(self) -> None:
        if hasattr(self, "site"):
            assert broken(self.site) == []
            self.is_sound = True


def play(make_books: Callable[[], Books], lives: int) -> None:
    """Try so many lives on books of one kind."""
    machine = type("FaultyLife", (FaultyLife,), {"make_books": staticmethod(make_books)})
    with patched():
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=lives, stateful_step_count=40, deadline=None, print_blob=True,
                suppress_health_check=list(HealthCheck),
                # The check of a change tries the same lives each time; people try others.
                derandomize="CI" in os.environ,
            ),
        )  # fmt: skip


@pytest.fixture
def make_sqlite() -> Iterator[Callable[[], Books]]:
    """Books of one life each, where writing is quick if there is such a place."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        empty = Path(folder) / "empty.sqlite"
        write_empty(f"sqlite:///{empty}")
        yield lambda: SqliteBooks(empty)


def test_lives_on_sqlite(make_sqlite: Callable[[], Books]) -> None:
    play(make_sqlite, LIVES)


@pytest.mark.postgresql
def test_lives_on_postgresql(postgres_url: str) -> None:
    write_empty(postgres_url)
    play(lambda: PostgresBooks(postgres_url), max(1, LIVES // 4))


# --- lives that must not be left to chance ------------------------------------------------------


@pytest.fixture
def life(make_sqlite: Callable[[], Books]) -> Iterator[FaultyLife]:
    """A life that is told step by step; in the end all is checked as after a random one."""
    made = type("FaultyLife", (FaultyLife,), {"make_books": staticmethod(make_sqlite)})()
    with patched():
        made.open()
        try:
            yield made
            made.all_is_sound()
        finally:
            made.teardown()


def test_books_that_were_lost_hand_out_nothing_that_runs(life: FaultyLife) -> None:
    life.start_at_once("ada", "pair")
    life.the_books_are("lost", quick=True)
    life.start_at_once("ben", "whole")
    life.all_is_sound()
    assert [(each.key.user, each.state) for each in life.site.living()] == [
        ("ada", State.RUNNING)
    ]  # fmt: skip
    assert life.hub.refusals == [Code.ALL_IN_USE]


def test_a_server_that_comes_late_holds_its_gpu_until_it_is_gone(life: FaultyLife) -> None:
    life.a_call_will_fail("hub", "create_container", "late")
    life.start_at_once("ada", "pair")
    assert life.hub.refusals == [Code.ENGINE_AWAY]
    assert [each.state for each in life.site.living()] == [State.ENDING]
    life.time_passes(40, compare=True)
    life.the_engine("does what is late", 0)
    life.start_at_once("ben", "whole")
    assert life.hub.refusals[1:] == [Code.ALL_IN_USE]
    life.time_passes(160, compare=True)
    assert (life.site.living(), life.site.engine.containers) == ([], {})
    life.start_at_once("ben", "whole")
    assert [each.key.user for each in life.site.living()] == ["ben"]


def test_a_hub_that_died_between_create_and_bind_finds_its_server(life: FaultyLife) -> None:
    life.hub.start("ada", "whole")
    while not life.site.engine.containers:
        life.hub.go_on(1)
    life.hub.kill()
    life.the_hub_starts(ALL)
    assert life.site.database == {}
    assert (life.site.living(), life.site.engine.containers) == ([], {})
