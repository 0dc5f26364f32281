"""Puts an agent together from its arguments and environment, and runs it."""

import argparse
import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from gpuspawner.agent.agent import (
    GUARD_SECONDS,
    MOST_SECONDS,
    OBSERVE_AT_LEAST_SECONDS,
    OBSERVE_SECONDS,
    RECONCILE_SECONDS,
    ROUNDS_AT_LEAST_SECONDS,
    Agent,
)
from gpuspawner.agent.forgotten import Forgotten
from gpuspawner.agent.guard import Guard
from gpuspawner.agent.hub import hub_servers_from_environment
from gpuspawner.agent.sampler import Sampler
from gpuspawner.broker.broker import Broker
from gpuspawner.broker.reconcile import Reconciler
from gpuspawner.config import LEDGER_URL_VARIABLE, default_ledger_url
from gpuspawner.engines.docker.client import DockerEngine
from gpuspawner.engines.docker.runtime import DockerRuntime
from gpuspawner.engines.look import Runtime
from gpuspawner.engines.process.runtime import ProcessRuntime
from gpuspawner.gpus.factory import open_inventory
from gpuspawner.gpus.inventory import Inventory
from gpuspawner.gpus.origins import Origins
from gpuspawner.hubid import hub_ids_in_sight
from gpuspawner.ledger.store import Ledger
from gpuspawner.lifetime import FileLock, end_with_parent, watch
from gpuspawner.steps import Steps, steps_from

SIMULATE_VARIABLE = "GPUSPAWNER_SIMULATE"
SIMULATION_VARIABLE = "GPUSPAWNER_SIMULATION_FILE"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the agent's arguments; each has a variable or a default."""
    parser.add_argument(
        "--ledger", default=None, metavar="URL",
        help=f"where the books are (default: {LEDGER_URL_VARIABLE}, else a file here)",
    )  # fmt: skip
    parser.add_argument("--host-id", default=socket.gethostname(), help="this host's name")
    parser.add_argument(
        "--simulate", default=os.environ.get(SIMULATE_VARIABLE) or None, metavar="LAB",
        help="a simulated lab in place of the hardware: four-a100, mixed-lab, dgx-h100",
    )  # fmt: skip
    parser.add_argument(
        "--simulation-file", type=Path, default=os.environ.get(SIMULATION_VARIABLE), metavar="FILE",
        help="a file that changes the simulated lab while it runs",
    )  # fmt: skip
    parser.add_argument(
        "--lock", type=Path, default=Path("gpuspawner-agent.lock"), metavar="FILE",
        help="held while the agent runs, so that two never do",
    )  # fmt: skip
    parser.add_argument(
        "--external", action="store_true",
        help="do not end with the process that started this one (for a unit of the site's own)",
    )  # fmt: skip
    for name, usually, at_least in (
        ("--observe-seconds", OBSERVE_SECONDS, OBSERVE_AT_LEAST_SECONDS),
        ("--guard-seconds", GUARD_SECONDS, ROUNDS_AT_LEAST_SECONDS),
        ("--reconcile-seconds", RECONCILE_SECONDS, ROUNDS_AT_LEAST_SECONDS),
    ):
        parser.add_argument(name, type=partial(_seconds, at_least=at_least), default=usually)


def run(arguments: argparse.Namespace) -> int:
    """Run the agent until SIGTERM, SIGINT, or the end of the hub that started it."""
    logging.basicConfig(
        level=logging.INFO, format="[%(levelname).1s %(asctime)s gpu-agent] %(message)s"
    )
    stopped = threading.Event()
    _wait_for_signals(stopped.set)
    if not arguments.external:
        watch(end_with_parent(), stopped.set)
    lock = FileLock(arguments.lock)
    if not lock.take_when_free(stopped):
        return 0
    try:
        steps = steps_from(os.environ)
        ledger = Ledger(arguments.ledger or default_ledger_url(), steps=steps)
        inventory = open_inventory(arguments.host_id, arguments.simulate, arguments.simulation_file)
    except ValueError as error:
        raise SystemExit(f"gpuspawner agent: {error}") from None
    engine = DockerEngine(steps=steps)
    try:
        agent = _assemble(arguments, ledger, engine, inventory, steps)
        threading.Thread(target=_then, args=(stopped, agent.stop), daemon=True).start()
        agent.run()
    finally:
        engine.close()
        ledger.close()
        lock.close()
    return 0


def _seconds(text: str, at_least: float) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not at_least <= seconds <= MOST_SECONDS:
        raise argparse.ArgumentTypeError(
            f"expected seconds from {at_least:g} to {MOST_SECONDS:g}, got {text!r}"
        )
    return seconds


def _wait_for_signals(on_signal: Callable[[], None]) -> None:
    """Call ``on_signal`` once, from a thread, at SIGTERM or SIGINT.

    A handler would run in the main thread, wherever that is. The kernel may signal the hub's end
    twice: the second handler would wait for the lock of the event that the first is setting, and
    an agent that is told to end would go on for ever.
    """
    signals = (signal.SIGTERM, signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # in all threads made from here on

    def wait() -> None:
        signal.sigwait(signals)
        on_signal()

    threading.Thread(target=wait, name="signals", daemon=True).start()


def _assemble(
    arguments: argparse.Namespace, ledger: Ledger, engine: DockerEngine, inventory: Inventory,
    steps: Steps,
) -> Agent:  # fmt: skip
    broker = Broker(ledger, actor=f"agent:{arguments.host_id}")
    runtimes: dict[str, Runtime] = {
        "docker": DockerRuntime(engine), "process": ProcessRuntime(steps=steps)
    }  # fmt: skip
    guard = Guard(broker, runtimes, arguments.host_id, _now)
    reconciler = Reconciler(broker, runtimes, arguments.host_id, hub_ids_in_sight, _now)
    sampler = Sampler(broker, inventory, Origins(), lambda: reconciler.containers)
    hub = hub_servers_from_environment(steps)
    forgotten = None if hub is None else Forgotten(broker, hub, hub_ids_in_sight, _now)
    return Agent(
        broker, sampler, guard, reconciler, engine.watch, _now,
        observe_seconds=arguments.observe_seconds, guard_seconds=arguments.guard_seconds,
        reconcile_seconds=arguments.reconcile_seconds,
        ask_hub=None if forgotten is None else forgotten.round,
    )  # fmt: skip


def _then(event: threading.Event, action: Callable[[], None]) -> None:
    event.wait()
    action()


def _now() -> datetime:
    return datetime.now(UTC)
