"""Many at once from several processes: exactly one gets what is there once."""

import signal
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing import get_context

import pytest

from gpuspawner.broker.broker import Broker
from gpuspawner.broker.invariants import broken_promises
from gpuspawner.domain.leases import LIVE
from gpuspawner.domain.placement import availability
from gpuspawner.ledger.store import Ledger
from tests.broker.children import (
    THREADS,
    Pick,
    ask_and_end_for_ever,
    named_server,
    own_server,
    race,
    same_server,
)
from tests.broker.looks import actions, held
from tests.builders import NEVER_RAN, T0, WANTED, WHOLE, device, inventory
from tests.ledger.children import child, heard

PROCESSES = 2


def run_race(url: str, rounds: int, pick: Pick) -> list[list[str]]:
    """Return what each round brought to all threads of all processes."""
    line = get_context("spawn").Barrier(PROCESSES * THREADS)
    with ExitStack() as stack:
        pipes = [
            stack.enter_context(child(race, url, process, line, rounds, pick))
            for process in range(PROCESSES)
        ]
        threads = [outcomes for pipe in pipes for outcomes in heard(pipe, 240)]
    return [list(outcomes) for outcomes in zip(*threads, strict=True)]


@pytest.mark.proves("P1", "P3", "R1")
@pytest.mark.timeout(300)
def test_one_gpu_and_twenty_at_once_two_hundred_times(broker: Broker, ledger_url: str) -> None:
    broker.observe(inventory(device("a")), T0)
    rounds = run_race(ledger_url, 200, own_server)
    assert len(rounds) == 200
    for outcomes in rounds:
        assert sorted(outcomes) == ["all-in-use"] * 19 + ["granted"]
    done = actions(broker)
    assert (done.count("grant"), done.count("end"), done.count("refuse")) == (200, 200, 3800)
    assert held(broker) == {}


def test_one_person_with_many_servers_gets_the_one_gpu_once(
    broker: Broker, ledger_url: str
) -> None:
    broker.observe(inventory(device("a")), T0)
    for outcomes in run_race(ledger_url, 20, named_server):
        assert sorted(outcomes) == ["all-in-use"] * 19 + ["granted"]


@pytest.mark.proves("R1", "R5")
def test_one_server_gets_one_lease_though_more_is_free(broker: Broker, ledger_url: str) -> None:
    broker.observe(inventory(*(device(name) for name in "abcd")), T0)
    for outcomes in run_race(ledger_url, 20, same_server):
        assert sorted(outcomes) == ["granted"] + ["server-holds"] * 19


@pytest.mark.proves("R1")
def test_a_few_gpus_are_all_used_and_none_twice(broker: Broker, ledger_url: str) -> None:
    broker.observe(inventory(*(device(name) for name in "abcdefg")), T0)
    for outcomes in run_race(ledger_url, 20, own_server):
        assert sorted(outcomes) == ["all-in-use"] * 13 + ["granted"] * 7


@pytest.mark.proves("P3", "R1")
def test_processes_that_are_killed_leave_whole_books(
    broker: Broker, ledger_url: str, open_ledger: Callable[..., Ledger]
) -> None:
    broker.observe(inventory(*(device(name) for name in "abcd")), T0)
    for attempt in range(3):
        with ExitStack() as stack:
            pipes = [
                stack.enter_context(
                    child(
                        ask_and_end_for_ever, ledger_url, 2 * attempt + n,
                        exit_code=-signal.SIGKILL, kill=True,
                    )
                )
                for n in range(2)
            ]  # fmt: skip
            for pipe in pipes:
                for _ in range(10 + 5 * attempt):
                    heard(pipe)
        assert broken_promises(broker.ledger) == []
    with broker.ledger.read() as books:
        left = books.living(states=LIVE)
    for lease in left:
        broker.end(lease.lease_id, WANTED, NEVER_RAN, T0)
    with broker.ledger.read() as books:
        assert books.living() == []
        assert availability(books.view(T0), WHOLE).free == 4
