"""A site with random people and random faults, for as long as one says."""

import collections
import contextlib
import random
import time
import traceback
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Final

import requests

from gpuspawner.domain.leases import State
from tests.rig.processes import wait_for
from tests.soak.agreement import disagreements, healthy, never_true
from tests.soak.site import START_SECONDS, USERS, Site, profile_names
from tests.soak.troubles import Begun, Troubles

QUIET_EVERY_SECONDS: Final = 20.0
QUIET_SECONDS: Final = 60.0
# Of a create without an answer nothing is known for as long as an engine may take.
END_SECONDS: Final = 120.0
MORE_HANDLES: Final = 30
STEPS_SHOWN: Final = 50


class SoakError(Exception):
    """What must be true is not; the text says what, and what went before."""


class Soak:
    """One run. The same seed makes the same choices; how they fall in time differs."""

    def __init__(self, site: Site, seed: int) -> None:
        self.site, self.seed = site, seed
        self.tally: Counter[str] = Counter()
        self._chance = random.Random(seed)
        self._troubles = Troubles(site, self._chance)
        self._begun: list[tuple[float, Begun]] = []
        self._steps: collections.deque[str] = collections.deque(maxlen=STEPS_SHOWN)
        self._pool = ThreadPoolExecutor(len(USERS), thread_name_prefix="user")
        self._calls: dict[str, Future[None]] = {}
        self._touched: set[str] = set(USERS)  # who was touched since the last quiet moment
        self._before: dict[str, str] = {}

    # --- the run --------------------------------------------------------------------------

    def run(self, minutes: float) -> None:
        """Make trouble for so many minutes, then let everything end.

        Raises:
            SoakError: something was not as it must be.
        """
        try:
            self._quiet()
            handles = self.site.handles()
            until = time.monotonic() + minutes * 60
            quiet_at = time.monotonic() + QUIET_EVERY_SECONDS
            while time.monotonic() < until:
                self._step()
                if time.monotonic() > quiet_at:
                    self._quiet()
                    quiet_at = time.monotonic() + QUIET_EVERY_SECONDS
            self._quiet()
            self._end(handles)
        except Exception as error:
            raise SoakError(self._report(traceback.format_exc(limit=-4))) from error
        finally:
            for _, begun in self._begun:
                with contextlib.suppress(Exception):
                    begun.lift()
            self.site.proxy.lift()
            self._pool.shutdown()

    def _step(self) -> None:
        self._lift_due()
        self._look()
        if self._chance.random() < 0.65:
            self._command()
        elif len(self._begun) < 3:
            self._trouble()
        time.sleep(self._chance.uniform(0.1, 0.9))  # how dense the trouble is, not a wait for it

    def _look(self) -> None:
        """Look, in the middle of all trouble, for what must never be."""
        if any(begun.what == "engine killed" for _, begun in self._begun):
            return
        found = never_true(self.site)
        if found:
            raise AssertionError("\n".join(found))
        self.tally["looks"] += 1

    def _note(self, what: str) -> None:
        self._steps.append(f"{datetime.now(UTC):%H:%M:%S.%f} {what}")

    # --- people ---------------------------------------------------------------------------

    def _command(self) -> None:
        user = self._chance.choice(USERS)
        what = self._chance.choice(("start", "start", "start", "stop", "restart"))
        profile = self._chance.choice(profile_names())
        if user in self._calls and not self._calls[user].done():
            return
        self.tally[what] += 1
        self._note(f"{user}: {what} {profile if what != 'stop' else ''}")
        self._touched.add(user)
        self._calls[user] = self._pool.submit(self._ask, user, what, profile)

    def _ask(self, user: str, what: str, profile: str) -> None:
        hub = self.site.hub
        try:
            if what in ("stop", "restart"):
                self.tally[f"stop {hub.stop_server(user).status}"] += 1
            if what == "restart":
                with contextlib.suppress(TimeoutError):
                    wait_for("its end", lambda: user not in self.site.servers(), 20, every=0.2)
            if what in ("start", "restart"):
                answer = hub.start_server(user, options={"profile": profile})
                self.tally[f"start {answer.status}"] += 1
        except (OSError, RuntimeError, requests.RequestException) as error:
            self.tally[f"no answer: {type(error).__name__}"] += 1

    # --- faults ---------------------------------------------------------------------------

    def _trouble(self) -> None:
        names = {begun.what for _, begun in self._begun}
        if names & {"hub killed", "engine killed", "books locked"}:
            return  # one thing at a time is down; what has begun before goes on
        begun = self._troubles.make()
        self.tally["faults"] += 1
        self._note(f"fault: {begun.what}")
        self._touched |= set(USERS) if begun.touches is None else begun.touches
        self._begun.append((time.monotonic() + begun.seconds, begun))

    def _lift_due(self, *, all_of_them: bool = False) -> None:
        now = time.monotonic()
        due = [each for each in self._begun if all_of_them or each[0] <= now]
        for each in due:
            self._begun.remove(each)
            if each[1].seconds:
                each[1].lift()
                self._note(f"over: {each[1].what}")

    # --- quiet moments --------------------------------------------------------------------

    def _quiet(self) -> None:
        """Lift all faults, and wait until books, engine and hub agree."""
        self._lift_due(all_of_them=True)
        self.site.proxy.lift()
        self._note("quiet")
        for call in self._calls.values():
            call.result(120)
        found = ["nobody looked"]

        def look() -> bool:
            found[:] = disagreements(self.site)
            return not found

        try:
            wait_for("agreement", look, QUIET_SECONDS, every=0.5)
        except TimeoutError:
            raise AssertionError("\n".join(found)) from None
        self._look_after_the_healthy()
        self.tally["quiet"] += 1
        self._note("all agree")

    def _look_after_the_healthy(self) -> None:
        """Whom nothing touched must run on."""
        now = healthy(self.site)
        for user, container in self._before.items():
            if user not in self._touched:
                assert now.get(user) == container, f"{user}, whom nothing touched: {now.get(user)}"
        self._before, self._touched = now, set()

    def _end(self, handles: dict[str, int]) -> None:
        """Stop everything; nothing is left, and nothing has leaked."""
        self._note("end")
        for user in self.site.servers():
            self.site.hub.stop_server(user)
        left = ["nobody looked"]

        def look() -> bool:
            living = [f"lease {x.lease_id} ({x.state})" for x in self.site.living()]
            servers = [f"server of {user}" for user in self.site.servers()]
            left[:] = living + servers
            return not left

        try:
            wait_for("all to be over", look, END_SECONDS, every=0.5)
        except TimeoutError:
            raise AssertionError(f"left at the end: {left}") from None
        self._sweep()
        assert self.site.containers() == []
        now = self.site.handles()
        for name, count in handles.items():
            assert now[name] <= count + MORE_HANDLES, f"{name}: {count} handles, now {now[name]}"

    def _sweep(self) -> None:
        """A server without GPU that its hub lost goes at its owner's next start."""
        owners = {
            each["Config"]["Labels"]["org.gpuspawner.user"] for each in self.site.containers()
        }
        for user in owners:
            self.tally["lost without GPU"] += 1
            self.site.hub.start_server(user, options={"profile": "cpu"})
            self.site.hub.wait_server(user, timeout=START_SECONDS + 20)
            self.site.hub.stop_server(user)
            self.site.hub.wait_server(user, ready=False)

    # --- what it says ---------------------------------------------------------------------

    def summary(self) -> str:
        """Return one line: what was done, and how leases ended."""
        with self.site.ledger.read() as books:
            leases = books.recent(limit=100_000)
        ends = Counter(
            f"{'refused' if each.granted_at is None else 'ended'} {each.reason.code}"
            for each in leases
            if each.state is State.ENDED and each.reason is not None
        )
        parts = [f"{name} {count}" for name, count in sorted({**self.tally, **ends}.items())]
        return f"seed {self.seed}: {len(leases)} leases; {', '.join(parts)}"

    def _report(self, what: str) -> str:
        return "\n".join(
            [
                what, "--- the last steps", *self._steps,
                "--- the hub's log", *self._hub_says(),
                "--- the engine's log", self.site.engine.log_tail(20), self.summary(),
            ]
        )  # fmt: skip

    def _hub_says(self) -> list[str]:
        """Return the end of the log of hub and agent without what tells nothing."""
        lines = self.site.hub.log().splitlines()
        dull = (" 200 GET ", "[ConfigProxy]", "already exists", "409 POST", "xsrf", "metrics")
        return [line for line in lines if not any(text in line for text in dull)][-150:]
