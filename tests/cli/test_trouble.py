"""``status`` and ``leases`` in trouble: a silent engine, an agent that is away, strays."""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from gpuspawner.broker.broker import Broker
from gpuspawner.cli import leases, status
from gpuspawner.domain.devices import DeviceUUID
from gpuspawner.domain.leases import Lease
from gpuspawner.domain.reasons import RefusedError
from gpuspawner.domain.reconciliation import EngineState, Stray
from tests.builders import SMALL_MIG, T0, WHOLE, after, claim
from tests.cli.conftest import Ran

Run = Callable[..., Ran]


def say(broker: Broker, *, silent: float | None = None, detail: str = "", **values: Any) -> None:
    """Note how the lab's engine answered; times are seconds after T0."""
    given: dict[str, Any] = {"host_id": "lab", "engine": "docker", "detail": detail, **values}
    since = None if silent is None else after(silent)
    broker.note_engine(EngineState(silent_since=since, **given))


@pytest.fixture
def two(broker: Broker) -> list[Lease]:
    """One that runs and one that starts."""
    made = [broker.request(claim("ada", WHOLE, "lab"), T0)]
    broker.bind(made[0], "c1", after(1))
    broker.run(made[0], after(2), after(2))
    made.append(broker.request(claim("ben", SMALL_MIG), after(3)))
    return made


@pytest.mark.proves("P2", "P5")
def test_a_silent_engine_is_said_with_what_depends_on_it(
    run: Run, broker: Broker, two: list[Lease]
) -> None:
    say(broker, silent=9.5, detail="cannot connect\nto \x1b[31m/run/docker.sock")

    out = run("status").out

    assert out.endswith(
        "\n\nThe engine docker of lab has not answered since 2026-09-01 08:00:09 UTC: "
        "cannot connect to ?[31m/run/docker.sock\n"
        "It is not known whether the servers of these leases run: 1, 2. They stay held, and none "
        "of them is ended.\n"
    )
    assert "ada/lab (unknown whether it runs)\n" in out
    assert "ben (unknown whether it runs)\n" in out
    report = json.loads(run("status", "--json").out)
    assert report["engines"] == [
        {"host_id": "lab", "engine": "docker", "answered_at": after(9).isoformat(),
         "unknown_since": after(9).isoformat(), "unknown_why": "engine-silent",
         "missed": True, "detail": "cannot connect\nto \x1b[31m/run/docker.sock",
         "unknown_leases": [1, 2]},
    ]  # fmt: skip
    held = [x for x in report["hosts"][0]["devices"][3]["slices"] if x["holder"]]
    assert [(x["unknown_why"], x["unknown_since"]) for x in held] == [
        ("engine-silent", after(9).isoformat())
    ]
    # Nothing is freed by it.
    with broker.ledger.read() as books:
        assert {hold.lease_id for hold in books.holds()} == {1, 2}


def test_leases_in_the_list_are_marked(run: Run, broker: Broker, two: list[Lease]) -> None:
    say(broker, silent=9.5)
    lines = run("leases").out.splitlines()
    assert [line.split()[:5] for line in lines[1:3]] == [
        ["2", "ben", "mig-small", "granted,", "unknown"],
        ["1", "ada/lab", "whole", "running,", "unknown"],
    ]
    assert lines[-1] == (
        "unknown: it is not known whether the server runs, so the lease stays held. "
        "'gpuspawner status' says why."
    )
    listed = json.loads(run("leases", "--json").out)
    assert {x["unknown_why"] for x in listed} == {"engine-silent"}
    assert {x["unknown_since"] for x in listed} == {after(9).isoformat()}


def test_an_agent_that_is_away_is_told_from_a_silent_engine(
    run: Run, two: list[Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (status, leases):
        monkeypatch.setattr(module, "now", lambda: after(100))
    out = run("status").out
    assert (
        "The agent of lab has said nothing of the engine docker of lab since "
        "2026-09-01 08:00:09 UTC.\nIt is not known whether the servers of these leases run: 1, 2."
    ) in out
    assert {x["unknown_why"] for x in json.loads(run("leases", "--json").out)} == {"agent-away"}


def test_a_server_that_its_engine_does_not_show(
    run: Run, broker: Broker, two: list[Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that was set up anew answers well, and says nothing of the old containers."""
    say(broker, answered_at=after(195))
    for module in (status, leases):
        monkeypatch.setattr(module, "now", lambda: after(200))
    listed = {x["user"]: x for x in json.loads(run("leases", "--json").out)}
    assert listed["ben"]["unknown_why"] is None  # it has not run yet
    assert (listed["ada"]["unknown_why"], listed["ada"]["unknown_since"]) == (
        "not-shown", after(2).isoformat(),
    )  # fmt: skip
    out = run("status").out
    assert "ada/lab (unknown whether it runs)\n" in out
    assert "(unknown whether it runs)" not in out.replace("ada/lab (unknown whether it runs)", "")


def test_before_an_agent_has_looked_nothing_alarms(run: Run, broker: Broker) -> None:
    lease = broker.request(claim("ada", WHOLE, engine="process"), T0)
    assert "ada (not observed)\n" in run("status").out
    ran = run("leases")
    assert "granted, not observed" in ran.out
    assert "unknown" not in ran.out
    (listed,) = json.loads(run("leases", "--json").out)
    assert (listed["lease_id"], listed["unknown_why"], listed["unknown_since"]) == (
        lease.lease_id, "not-observed", None,
    )  # fmt: skip


def test_an_engine_that_its_host_never_had_is_not_spoken_of(run: Run, broker: Broker) -> None:
    say(broker, engine="process", silent=5, detail="no /proc")
    assert "no /proc" not in run("status").out
    told = json.loads(run("status", "--json").out)["engines"][1]
    assert (told["engine"], told["missed"], told["detail"]) == ("process", False, "no /proc")
    broker.request(claim("ada", WHOLE, engine="process"), T0)
    assert "no /proc\nIt is not known whether the servers of these leases run: 1." in (
        run("status").out
    )


def test_an_engine_on_which_nothing_depends(run: Run, broker: Broker) -> None:
    say(broker, silent=9.5, detail="refused")
    assert run("status").out.endswith(" UTC: refused\nNo lease depends on it.\n")


@pytest.fixture
def strays(broker: Broker) -> datetime:
    """A training job on two cards, and a monitor on all of another host."""
    job = Stray(
        run_id="0123456789abcdef", name="old\x07job",
        devices=(DeviceUUID("GPU-aa11"), DeviceUUID("GPU-aa22")),
    )  # fmt: skip
    broker.report_strays("lab", "docker", [job], after(5))
    monitor = Stray(run_id="fedcba9876543210", name="dcgm", devices=None)
    broker.report_strays("tower", "docker", [monitor], after(5))
    return after(5)


STRAYS = """\

These use GPUs and have no lease. They are left alone, and their GPUs are handed out to nobody:
NAME     HOST   ENGINE  RUN           GPUS
old?job  lab    docker  0123456789ab  GPU-aa11, GPU-aa22
dcgm     tower  docker  fedcba987654  all of its host
Stop what should not run. A monitor may stay: make it anew with the label \
org.gpuspawner.ignore=true.
"""


def test_strays_are_named_with_what_to_do(run: Run, broker: Broker, strays: datetime) -> None:
    out = run("status").out
    assert out.endswith(STRAYS)
    lines = out.splitlines()
    assert lines[2].endswith("unavailable: foreign old?job")
    assert json.loads(run("status", "--json").out)["strays"] == [
        {"host_id": "lab", "engine": "docker", "run_id": "0123456789abcdef", "name": "old\x07job",
         "devices": ["GPU-aa11", "GPU-aa22"]},
        {"host_id": "tower", "engine": "docker", "run_id": "fedcba9876543210", "name": "dcgm",
         "devices": None},
    ]  # fmt: skip
    with pytest.raises(RefusedError):
        broker.request(claim("ada"), after(6))


def test_a_stray_that_has_gone_is_shown_no_more(run: Run, broker: Broker, strays: datetime) -> None:
    broker.report_strays("lab", "docker", [], after(7))
    broker.report_strays("tower", "docker", [], after(7))
    assert "no lease" not in run("status").out
    assert json.loads(run("status", "--json").out)["strays"] == []
