"""A server's end that nobody asked the hub for: the engine's word ends the lease."""

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from gpuspawner.domain.leases import Source
from gpuspawner.domain.reasons import Code
from gpuspawner.engines.docker.reading import parse_time
from tests.e2e.lab import Lab

pytestmark = pytest.mark.engine


@pytest.mark.proves("R2")
@pytest.mark.parametrize(
    ("way", "code", "source"),
    [
        ("killed", Code.EXITED, Source.ENGINE),
        ("ended-by-itself", Code.EXITED, Source.ENGINE),
        ("removed-by-hand", Code.REMOVED, Source.EVENTS),
    ],
)
def test_the_lease_ends_with_the_engines_time_and_start_works_the_first_time(
    make_lab: Callable[..., Lab], way: str, code: Code, source: Source
) -> None:
    """Within 30 s: lease ended, hub shows stopped, slice free, Start works (case 12)."""
    lab = make_lab(agent=True)
    lab.hub.add_user("ada")
    lab.hub.add_user("ben")
    lab.start("ada", profile="whole")
    before = lab.last("ada")
    container = lab.container("ada")["Id"]
    assert lab.hub.start_server("ben", options={"profile": "whole"}).status == 429

    began = datetime.now(UTC)
    with contextlib.closing(lab.engine.client()) as client:
        if way == "killed":
            client.kill(container)
        elif way == "ended-by-itself":
            client.kill(container, signal="SIGTERM")
        else:
            client.remove_container(container, force=True)
    lease = lab.wait_ended(before.lease_id)
    lab.hub.wait_server("ada", ready=False, timeout=30)

    assert datetime.now(UTC) - began < timedelta(seconds=30)
    assert lease.reason is not None
    assert lease.reason.code is code
    assert lease.finished_source is source
    assert lease.finished_at is not None
    assert abs(lease.finished_at - began) < timedelta(seconds=5)
    assert lab.containers("ada") == []
    assert lab.hub.start_server("ben", options={"profile": "whole"}).status == 201
    assert lab.last("ben").slices == before.slices
    lab.stop("ben")
    assert lab.hub.start_server("ada", options={"profile": "whole"}).status == 201
    assert lab.last("ada").fence > before.fence  # type: ignore[operator]


def test_a_stop_records_the_finish_time_of_the_container(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab()
    lab.hub.add_user("ada")
    lab.start("ada", profile="mig-2g")
    started = parse_time(lab.container("ada")["State"]["StartedAt"])
    began = datetime.now(UTC)

    lab.stop("ada")

    lease = lab.last("ada")
    assert lease.running_at == started
    assert lease.finished_source is Source.ENGINE
    assert lease.finished_at is not None
    assert began - timedelta(seconds=1) <= lease.finished_at <= datetime.now(UTC)
    assert lease.reason is not None
    assert lease.reason.code is Code.STOPPED
    assert lab.containers("ada") == []


@pytest.mark.proves("P2", "R3")
def test_an_engine_that_is_away_ends_nothing(make_lab: Callable[..., Lab]) -> None:
    """Unknown is not gone: the lease stays held, the server counts as running (case 08)."""
    lab = make_lab(agent=True)
    lab.hub.add_user("ada")
    lab.hub.add_user("ben")
    lab.start("ada", profile="whole")
    lease, container = lab.last("ada"), lab.container("ada")["Id"]

    lab.engine.freeze()
    try:
        answer = lab.hub.start_server("ben", options={})
        assert answer.status in (202, 503), answer.body
        assert lab.last("ada").state == "running"
        assert lab.hub.server("ada", "")["ready"]
    finally:
        lab.engine.thaw()

    assert lab.container("ada")["Id"] == container
    assert lab.last("ada").lease_id == lease.lease_id
    lab.hub.wait_server("ada")


@pytest.mark.proves("P7", "R13", "R14")
def test_a_ledger_that_is_away_stops_no_cpu_notebook(
    make_lab: Callable[..., Lab],
) -> None:
    """A GPU request is refused with its reason; a server without GPU starts and stops (P7)."""
    lab = make_lab(config="c.GPUSpawner.retry_seconds = 7")
    lab.hub.add_user("ada")
    file = lab.ledger.url.database
    assert file is not None
    lab.ledger.close()
    with _locked(file):
        gpu = lab.hub.start_server("ada", options={"profile": "whole"})
        assert gpu.status in (202, 503), gpu.body
        if gpu.status == 202:
            lab.hub.wait_server("ada", ready=False, timeout=60)
        cpu = lab.hub.start_server("ada", options={"profile": "cpu"})
        assert cpu.status in (201, 202), cpu.body
        lab.hub.wait_server("ada")
        lab.stop("ada")
    assert lab.leases("ada") == []
    assert lab.containers("ada") == []


@contextlib.contextmanager
def _locked(file: str):
    """Hold the write lock of a SQLite file, as a backup program that hangs would."""
    import sqlite3

    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as database:
        database.execute("BEGIN EXCLUSIVE")
        yield
        database.execute("ROLLBACK")
