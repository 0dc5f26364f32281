"""The agent: one per GPU host. Writes inventory and load, guards the leases, compares the books."""

import logging
import threading
from collections.abc import Callable
from datetime import datetime
from typing import Final

from gpuspawner.agent.guard import Guard
from gpuspawner.agent.sampler import Sampler
from gpuspawner.broker.broker import Broker
from gpuspawner.broker.reconcile import Reconciler
from gpuspawner.domain.devices import HostId
from gpuspawner.engines.look import EngineUnknownError
from gpuspawner.ledger.store import LedgerAwayError

OBSERVE_SECONDS: Final = 2.0
OBSERVE_AT_LEAST_SECONDS: Final = 1.0  # the driver samples no more often
GUARD_SECONDS: Final = 5.0
RECONCILE_SECONDS: Final = 30.0
ROUNDS_AT_LEAST_SECONDS: Final = 0.1
MOST_SECONDS: Final = 3600.0
# A burst of events is answered by one look.
BURST_SECONDS: Final = 0.5
WATCH_AGAIN_SECONDS: Final = 2.0

Watch = Callable[[Callable[[str], None]], None]

log = logging.getLogger(__name__)


class Agent:
    """Loops in threads of their own, so that a hanging device delays no lease's end."""

    def __init__(
        self,
        broker: Broker,
        sampler: Sampler,
        guard: Guard,
        reconciler: Reconciler,
        watch: Watch,
        clock: Callable[[], datetime],
        *,
        observe_seconds: float = OBSERVE_SECONDS,
        guard_seconds: float = GUARD_SECONDS,
        reconcile_seconds: float = RECONCILE_SECONDS,
        ask_hub: Callable[[], None] | None = None,
    ) -> None:
        """Take the parts; `run` starts.

        ``watch`` calls back for each event of the engine, by its name, and returns or raises when
        the stream is over. ``ask_hub`` compares with the hub, where there is one to ask.
        """
        self._broker = broker
        self._sampler = sampler
        self._guard = guard
        self._reconciler = reconciler
        self._watch = watch
        self._clock = clock
        self._guard_seconds = guard_seconds
        self._rounds_between = max(1, round(reconcile_seconds / guard_seconds))
        self._rounds_left = 0
        self._engines_answer = True
        self._stop = threading.Event()
        self._woken = threading.Event()
        self._must_compare = threading.Event()
        self._compared = threading.Event()
        self._asked = 0  # how many comparisons were asked for, and up to which there was one
        self._compared_for = self._complete_for = 0
        self._threads = [
            threading.Thread(
                target=self._every, args=(observe_seconds, self.observe), name="observe"
            ),
            threading.Thread(target=self._keep_books, name="books"),
        ]
        if ask_hub is not None:  # a hub that hangs must not hold up the books
            self._threads.append(
                threading.Thread(target=self._every, args=(reconcile_seconds, ask_hub), name="hub")
            )
        self._watcher = threading.Thread(target=self._keep_watch, name="events", daemon=True)

    def run(self) -> None:
        """Work until `stop`."""
        self._watcher.start()
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join()
        self._sampler.close()

    def stop(self) -> None:
        """Let the loops end after their present round."""
        self._stop.set()
        self._woken.set()
        self._compared.set()

    def observe(self) -> None:
        """Look at the devices once and write down what is there, and whose it is.

        Books that are new, or were put back, do not know this host, and hand nothing of it out.
        They must learn of what runs on it before they do: their first observation of it waits for
        a comparison. An engine that is silent may run anything, so real devices wait for its
        answer; on simulated ones nobody is harmed, and a laptop may have no engine at all.

        Raises:
            LedgerAwayError: it could not be read or written.
        """
        now = self._clock()
        seen, whose = self._sampler.take(now)
        is_new = not self._is_known(seen.host_id)
        if is_new:
            self._wait_for_comparison(any_will_do=seen.simulated)
            if self._stop.is_set():
                return
            now = self._clock()
            seen, whose = self._sampler.take(now)
        self._broker.observe(seen, now, whose)
        if is_new:
            # What is foreign could not be told by its devices before they were known.
            self._must_compare.set()
            self._woken.set()

    def keep_books(self) -> None:
        """Look at each lease's server, and now and then compare everything.

        Raises:
            LedgerAwayError: the books cannot be read or written.
        """
        compare = self._rounds_left <= 0
        if self._must_compare.is_set():  # one that is asked for after this is not lost
            self._must_compare.clear()
            compare = True
        try:
            answer = self._guard.round()
            # A change of an engine's state is written down at once, and one that is back may run
            # what nobody knows of.
            if compare or answer is not self._engines_answer:
                asked = self._asked
                answered = self._reconciler.round()
                self._rounds_left = self._rounds_between
                self._compared_for = asked
                self._complete_for = asked if answered else self._complete_for
                self._compared.set()
            self._engines_answer = answer
        except Exception:
            self._must_compare.set()
            raise
        self._rounds_left -= 1

    def _is_known(self, host_id: HostId) -> bool:
        with self._broker.ledger.read() as books:
            return any(host.host_id == host_id for host in books.hosts())

    def _wait_for_comparison(self, *, any_will_do: bool) -> None:
        """Return when everything was compared with the present books, or at the stop.

        Args:
            any_will_do: also a comparison in which an engine was silent.
        """
        self._asked += 1  # a comparison that is under way may have read the books of before
        self._must_compare.set()
        self._woken.set()
        is_told = False
        while not self._stop.is_set():
            self._compared.wait()
            self._compared.clear()
            if self._asked <= (self._compared_for if any_will_do else self._complete_for):
                return
            if not is_told and self._asked <= self._compared_for:
                is_told = True
                log.warning(
                    "the books do not know this host yet, and an engine does not say what it runs: "
                    "no device of it is handed out until then"
                )

    def _keep_books(self) -> None:
        self._every(self._guard_seconds, self.keep_books, self._woken)

    def _keep_watch(self) -> None:
        while not self._stop.is_set():
            try:
                self._watch(self._on_event)
            except EngineUnknownError as error:
                log.debug("the engine's events have a gap: %s", error)
            except Exception:
                log.exception("watching the engine's events failed; trying again")
            self._must_compare.set()
            self._woken.set()
            self._stop.wait(WATCH_AGAIN_SECONDS)

    def _on_event(self, action: str) -> None:
        if action in ("create", "start"):
            self._must_compare.set()
        self._woken.set()

    def _every(
        self, seconds: float, work: Callable[[], None], woken: threading.Event | None = None
    ) -> None:
        pause = woken or self._stop
        failing = False
        while not self._stop.is_set():
            if woken is not None:
                woken.clear()
            try:
                work()
            except LedgerAwayError as error:
                if not failing:
                    log.warning("the ledger is away; trying again: %s", error)
                failing = True
            except Exception:
                # One bad round must not end the guard of all leases.
                log.exception("a round failed; trying again")
            else:
                if failing:
                    log.info("the ledger is back")
                failing = False
            self._stop.wait(min(BURST_SECONDS, seconds))
            pause.wait(max(seconds - BURST_SECONDS, 0))
