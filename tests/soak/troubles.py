"""The faults of a soak: each begins at once, and ends by itself or when it is lifted."""

import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import docker.errors
import psutil

from tests.doubles.engine_faults import CREATE, EVENTS, INSPECT, LIST, EventTrouble
from tests.doubles.faults import without_first
from tests.soak.site import USER_LABEL, Site

START, STOP, ONE = r"/containers/[^/]+/start", r"/containers/[^/]+/stop", r"/containers/[^/?]+\?"
CALLS: Final = (
    ("POST", CREATE), ("POST", START), ("POST", STOP), ("DELETE", ONE), ("GET", INSPECT),
    ("GET", LIST),
)  # fmt: skip
_BETWEEN_SHORT_LISTS: Final = 15.0  # what a list lacks is believed gone at the second look

Lift = Callable[[], None]


@dataclass
class Begun:
    """A fault that has begun."""

    what: str
    seconds: float  # how long it lasts
    lift: Lift
    touches: frozenset[str] | None = frozenset()  # whose containers it may end; None: everybody's


class Troubles:
    """Makes faults by chance."""

    def __init__(self, site: Site, chance: random.Random) -> None:
        self._site, self._chance = site, chance
        self._short_at = 0.0

    def make(self) -> Begun:
        """Begin a fault."""
        kinds: list[tuple[int, Callable[[], Begun]]] = [
            (6, self.error), (4, self.delay), (4, self.hang), (5, self.lost), (2, self.short_list),
            (3, self.events), (2, self.refusing), (3, self.locked), (3, self.lost_container),
            (2, self.hub_killed), (2, self.agent_killed), (1, self.engine_killed),
        ]  # fmt: skip
        weights = [weight for weight, _ in kinds]
        return self._chance.choices([make for _, make in kinds], weights)[0]()

    def _on_call(self, what: str, seconds: float, **fault: object) -> Begun:
        method, path = self._chance.choice(CALLS)
        made = self._site.proxy.fault(method, path, **fault)
        return Begun(f"{what} of {method} {path}", seconds, made.lift)

    def error(self) -> Begun:
        return self._on_call("500", 8, status=500, times=self._chance.randint(1, 3))

    def delay(self) -> Begun:
        return self._on_call("delay", 6, delay=self._chance.uniform(0.5, 4))

    def hang(self) -> Begun:
        return self._on_call("hang", self._chance.uniform(1, 7), hang=True)

    def lost(self) -> Begun:
        way = self._chance.choice(("lose", "close", "reset"))
        return self._on_call(way, 8, times=self._chance.randint(1, 2), **{way: True})

    def short_list(self) -> Begun:
        if time.monotonic() - self._short_at < _BETWEEN_SHORT_LISTS:
            return self.delay()
        self._short_at = time.monotonic()
        change = without_first(self._chance.randint(1, 3))
        made = self._site.proxy.fault("GET", LIST, change=change, times=1)
        return Begun("short list", 5, made.lift)

    def events(self) -> Begun:
        trouble = EventTrouble(
            seed=self._chance.randrange(1000), drop=0.4, twice=0.3, window=3, delay=1,
            cut_after=self._chance.randint(1, 5),
        )  # fmt: skip
        made = self._site.proxy.fault("GET", EVENTS, stream=trouble)
        self._site.proxy.refuse()  # else the stream that is open goes on undisturbed
        self._site.proxy.listen()
        return Begun("events", 10, made.lift)

    def refusing(self) -> Begun:
        self._site.proxy.refuse()
        return Begun("engine refuses", self._chance.uniform(1, 6), self._site.proxy.listen)

    def locked(self) -> Begun:
        stack = contextlib.ExitStack()
        stack.enter_context(self._site.write_lock())
        return Begun("books locked", self._chance.uniform(1, 8), stack.close)

    def lost_container(self) -> Begun:
        """Remove a container by hand, or kill what runs in it."""
        running = self._site.client().containers()
        if not running:
            return self.error()
        victim = self._chance.choice(running)
        user = victim["Labels"].get(USER_LABEL, "")
        way = self._chance.choice(("rm", "kill"))
        with contextlib.suppress(docker.errors.APIError):
            if way == "rm":
                self._site.client().remove_container(victim["Id"], force=True)
            else:
                self._site.client().kill(victim["Id"])
        return Begun(f"docker {way} of {user}'s container", 0, _nothing, frozenset({user}))

    def hub_killed(self) -> Begun:
        self._site.hub.kill()
        return Begun("hub killed", self._chance.uniform(0, 2), self._site.hub.start)

    def agent_killed(self) -> Begun:
        for agent in self._site.agents():
            with contextlib.suppress(psutil.NoSuchProcess):
                agent.kill()
        return Begun("agent killed", 0, _nothing)

    def engine_killed(self) -> Begun:
        self._site.engine.kill()
        return Begun("engine killed", self._chance.uniform(0, 4), self._site.engine.start, None)


def _nothing() -> None:
    """It lasts no longer."""
