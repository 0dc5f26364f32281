"""Storage faults of the ledger while people start and stop servers (case 62).

A disk that is full, a disk that turns read-only, and a lock that somebody else holds for 12 s,
which is longer than a write waits; ``GPUSPAWNER_LOCK_SECONDS=30`` for half a minute. Each time:
whoever wants a GPU is told when to come again, servers without one start and stop, nothing is half
written, and hub and agent go on by themselves. How the ledger itself bears such disks stands in
`tests/ledger/test_storage_faults.py`.
"""

import contextlib
import os
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from gpuspawner.domain.leases import Source, State
from gpuspawner.domain.reasons import Code
from tests.e2e.lab import PATIENT, QUICK_AGENT, Lab
from tests.ledger.disks import failing_disk, mount, small_disk
from tests.rig.hub_api import Answer
from tests.rig.processes import wait_for

pytestmark = [pytest.mark.engine, pytest.mark.proves("P3", "P7", "R13")]

LOCK_SECONDS = float(os.environ.get("GPUSPAWNER_LOCK_SECONDS", "12"))
RETRY_SECONDS = 7


@pytest.fixture
def make_site(make_lab: Callable[..., Lab]) -> Callable[[Path], Lab]:
    """Make labs whose books are in a folder."""

    def make(books: Path) -> Lab:
        config = PATIENT + QUICK_AGENT + f"c.GPUSpawner.retry_seconds = {RETRY_SECONDS}\n"
        lab = make_lab(agent=True, config=config, books=books)
        for user in ("ada", "ben", "cho"):
            lab.hub.add_user(user)
        return lab

    return make


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A small disk, there for longer than a lab."""
    with small_disk(tmp_path / "disk", "4m") as folder:
        yield folder


@pytest.fixture
def failing(tmp_path: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    """A disk that will fail, and a way to put in its copy; there for longer than a lab."""
    with failing_disk(tmp_path / "disk", tmp_path / "image") as made:
        yield made


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """No byte is left on a disk."""
    filler = folder / "filler"
    done = subprocess.run(
        ["dd", "if=/dev/zero", f"of={filler}", "bs=1k"], check=False, capture_output=True
    )
    assert b"No space" in done.stderr
    try:
        yield
    finally:
        filler.unlink()


@contextmanager
def locked(lab: Lab) -> Iterator[None]:
    """Another program holds the write lock, for so long at least."""
    file = lab.ledger.url.database
    assert file is not None
    with contextlib.closing(sqlite3.connect(file, timeout=20, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        yield
        wait_for("the time", lambda: time.monotonic() - began > LOCK_SECONDS, LOCK_SECONDS + 5)
        other.execute("ROLLBACK")


def expect_refused(lab: Lab, ask: Callable[[], Answer]) -> None:
    """No GPU, no record, no container: and a time to come again."""
    before = {lease.lease_id for lease in lab.leases("ben")}
    answer = ask()
    assert answer.status == 503, answer.body
    assert "no GPU can be handed out" in answer.body["message"]
    headers = {name.lower(): value for name, value in answer.headers.items()}
    assert headers["retry-after"] == str(RETRY_SECONDS)
    assert {lease.lease_id for lease in lab.leases("ben")} == before
    assert lab.containers("ben") == []


def spawns_go_on(lab: Lab, fault: contextlib.AbstractContextManager[None]) -> None:
    """Ada's server runs with a GPU, ben wants one, cho wants none; then the storage fails."""
    hub = lab.hub
    lab.start("ada", profile="whole")
    lab.start("cho", "mine", profile="mig-2g")
    running, leaving = lab.last("ada"), lab.last("cho")
    container, pids = lab.container("ada")["Id"], (hub.pid, agent_pid(lab))

    with fault:
        wait_for("the agent to notice", lambda: "the ledger is away" in hub.log())
        expect_refused(lab, lambda: hub.start_server("ben", options={"profile": "mig-2g"}))
        began = time.monotonic()
        lab.start("cho", profile="cpu")
        lab.stop("cho")
        print(f"a CPU notebook started and stopped in {time.monotonic() - began:.1f} s meanwhile")
        # Who stops meanwhile is stopped, and the record follows.
        assert hub.stop_server("cho", "mine").status in (202, 204)
        assert hub.server("ada")["ready"]  # type: ignore[index]
        assert lab.container("ada")["Id"] == container

    # Healthy by themselves, each still the same process.
    began = time.monotonic()

    def granted() -> bool:
        answer = hub.start_server("ben", options={"profile": "mig-2g"})
        assert answer.status in (201, 503), answer.body
        return answer.status == 201

    wait_for("a GPU for ben", granted, 30)
    print(f"the first GPU {time.monotonic() - began:.1f} s after the fault")
    left = lab.wait_ended(leaving.lease_id)
    assert left.reason is not None
    assert left.reason.code in (Code.STOPPED, Code.REMOVED)
    assert left.finished_source in (Source.ENGINE, Source.EVENTS)
    assert lab.audit(left.lease_id).count("end") == 1
    wait_for("the agent's word", lambda: "the ledger is back" in hub.log())
    assert (hub.pid, agent_pid(lab)) == pids
    living = {lease.key.user: lease for lease in lab.living()}
    assert sorted(living) == ["ada", "ben"]
    assert living["ada"].lease_id == running.lease_id
    assert living["ada"].state is State.RUNNING
    assert lab.audit(living["ben"].lease_id).count("grant") == 1
    lab.check()
    lab.stop("ada")
    lab.stop("ben")
    assert lab.living() == []
    verified = lab.cli("verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "Traceback" not in hub.log()


def agent_pid(lab: Lab) -> int:
    """The managed agent's process id."""
    (agent,) = [each for each in psutil.Process(lab.hub.pid).children(recursive=True)
                if "agent" in each.cmdline()]  # fmt: skip
    return agent.pid


def test_a_disk_that_is_full(small: Path, make_site: Callable[[Path], Lab]) -> None:
    spawns_go_on(make_site(small), full(small))


def test_a_disk_that_turns_read_only_and_is_replaced(
    failing: tuple[Path, Callable[[], None]], make_site: Callable[[Path], Lab]
) -> None:
    folder, replace = failing

    @contextmanager
    def broken() -> Iterator[None]:
        mount("-o", "remount,abort", str(folder))
        yield
        replace()

    spawns_go_on(make_site(folder), broken())


def test_a_lock_that_somebody_else_holds(make_site: Callable[[Path], Lab], tmp_path: Path) -> None:
    books = tmp_path / "books"
    books.mkdir()
    lab = make_site(books)
    spawns_go_on(lab, locked(lab))
