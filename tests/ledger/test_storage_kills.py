"""A writer is killed at each of its statements and at any moment: what it told is in the books."""

import random
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from gpuspawner.broker.invariants import broken_promises
from gpuspawner.domain.leases import HOLDING, State
from gpuspawner.ledger.backup import damage
from gpuspawner.ledger.store import Ledger
from tests.ledger.children import PATIENCE
from tests.ledger.killed import start

pytestmark = pytest.mark.proves("P3", "R13")

ORDER = ("granted", "bound", "running", "ended")


def told_before_the_end(pipe: Connection) -> list[tuple[str, int, int]]:
    told = []
    try:
        while pipe.poll(PATIENCE):
            told.append(pipe.recv())
    except EOFError:
        pass
    return told


def check(url: str, told: list[tuple[str, int, int]]) -> None:
    ledger = Ledger(url)
    try:
        with ledger.read() as books:
            leases = {lease.lease_id: lease for lease in books.recent(limit=100_000)}
            holds = {hold.lease_id for hold in books.holds()}
        assert broken_promises(ledger) == []
    finally:
        ledger.close()
    assert damage(Path(str(make_url(url).database))) == []
    last = {number: (what, fence) for what, number, fence in told}
    for number, (what, fence) in last.items():
        lease = leases[number]
        assert lease.fence == fence
        if what == "ended":
            assert lease.state is State.ENDED
        elif lease.state is not State.ENDED:  # else killed after the commit, before it told
            assert lease.state in HOLDING
            assert number in holds
            assert what != "running" or lease.state is State.RUNNING
            assert what == "granted" or lease.run_id == f"run-{number}"
        else:
            assert what == "running"


def killed(url: str, name: str, kill_at: int | None, seconds: float = 0.0) -> int:
    """Let a process be killed; return how much it told."""
    process, pipe = start(url, name, kill_at)
    try:
        told: list[tuple[str, int, int]] = []
        if kill_at is None:
            assert pipe.poll(PATIENCE), "it says nothing"
            told.append(pipe.recv())
            time.sleep(seconds)
            process.kill()
        told += told_before_the_end(pipe)
        process.join(PATIENCE)
        assert process.exitcode == -signal.SIGKILL
    finally:
        process.kill()
        process.join()
        pipe.close()
    check(url, told)
    return len(told)


def test_killed_at_each_statement(sqlite_url: str) -> None:
    """Until one has told of a whole life: then every statement of it has had its turn."""
    number = 0
    for number in range(1, 400):
        if killed(sqlite_url, f"at-{number}", number) > len(ORDER):
            break
    assert 30 < number < 399


def test_killed_at_any_moment(sqlite_url: str) -> None:
    rng = random.Random(5)
    for number in range(40):
        killed(sqlite_url, f"any-{number}", None, rng.uniform(0, 0.03))


def test_killed_beside_another_process_that_writes(sqlite_url: str) -> None:
    """The other one is not held up, and what it told is in the books too."""
    process, pipe = start(sqlite_url, "steady", None)
    told: list[tuple[str, int, int]] = []
    try:
        rng = random.Random(6)
        for number in range(10):
            killed(sqlite_url, f"other-{number}", None, rng.uniform(0, 0.03))
            heard = len(told)
            while pipe.poll(PATIENCE if len(told) == heard else 0):
                told.append(pipe.recv())
            assert len(told) > heard, "the steady one stands still"
        process.kill()
        told += told_before_the_end(pipe)
        check(sqlite_url, told)
    finally:
        process.kill()
        process.join()
        pipe.close()
