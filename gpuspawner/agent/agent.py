"""The agent: one per GPU host. Writes inventory and load, and guards the living leases."""

import logging
import threading
from collections.abc import Callable
from datetime import datetime
from typing import Final

from gpuspawner.agent.guard import Guard
from gpuspawner.broker.broker import Broker
from gpuspawner.gpus.inventory import Inventory
from gpuspawner.ledger.store import LedgerAwayError

OBSERVE_SECONDS: Final = 5.0
GUARD_SECONDS: Final = 5.0

log = logging.getLogger(__name__)


class Agent:
    """Two loops in threads of their own, so that a hanging device delays no lease's end."""

    def __init__(
        self,
        broker: Broker,
        inventory: Inventory,
        guard: Guard,
        clock: Callable[[], datetime],
        *,
        observe_seconds: float = OBSERVE_SECONDS,
        guard_seconds: float = GUARD_SECONDS,
    ) -> None:
        """Take the parts; `run` starts."""
        self._broker = broker
        self._inventory = inventory
        self._clock = clock
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._every, args=(observe_seconds, self.observe), name="observe"
            ),
            threading.Thread(target=self._every, args=(guard_seconds, guard.round), name="guard"),
        ]

    def run(self) -> None:
        """Work until `stop`."""
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join()
        self._inventory.close()

    def stop(self) -> None:
        """Let both loops end after their present round. Safe to call from a signal handler."""
        self._stop.set()

    def observe(self) -> None:
        """Look at the devices once and write down what is there.

        Raises:
            LedgerAwayError: it could not be written.
        """
        now = self._clock()
        self._broker.observe(self._inventory.look(now), now)

    def _every(self, seconds: float, work: Callable[[], None]) -> None:
        failing = False
        while not self._stop.is_set():
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
            self._stop.wait(seconds)
