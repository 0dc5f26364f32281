"""The reconciler and what is foreign, silent, short, or away."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpuspawner.broker.observing import Observing
from gpuspawner.domain.devices import Trouble
from gpuspawner.domain.leases import State
from gpuspawner.domain.reconciliation import Stray
from gpuspawner.engines.look import EngineRefusedError, EngineUnknownError
from gpuspawner.ledger.store import Ledger, LedgerAwayError
from tests.broker.looks import actions, audit
from tests.broker.reconcile_world import LAB, SILENCE, Site
from tests.builders import after, claim, device, key

G0, G1 = (each.uuid for each in LAB)
BROKEN = EngineUnknownError("500", answered=True)


def trouble(site: Site) -> dict[str, str]:
    """Which devices are kept clear of, and of whom."""
    with site.ledger.read() as books:
        pool = books.view(site.now)
    return {
        uuid: item.unavailable.detail
        for uuid, item in pool.devices.items()
        if item.unavailable and item.unavailable.trouble is Trouble.FOREIGN
    }


# What is foreign.


@pytest.mark.proves("R4")
@pytest.mark.parametrize(
    ("names", "devices", "free"),
    [
        (("0",), (G0,), [G1]),
        ((G1,), (G1,), [G0]),
        (("0", "1"), (G0, G1), []),
        (None, None, []),
        (("7",), None, []),
    ],
)
def test_its_devices_are_shown_and_not_handed_out_until_it_is_gone(
    site: Site, names: Any, devices: Any, free: list[str]
) -> None:
    site.engine.put(run_id="x", devices=names)
    site.reconciler.round()
    assert site.strays() == [Stray(run_id="x", name="x", devices=devices)]
    assert site.free() == free
    assert trouble(site) == dict.fromkeys((G0, G1) if devices is None else devices, "x")
    assert actions(site.hub)[-1] == "stray"
    assert audit(site.hub)[-1]["target"] == "x"
    waits = site.hub.request(claim("ada", may_wait=True, start_seconds=60), site.now)
    more = [site.hub.request(claim(u, may_wait=True), site.now) for u in ("ben", "cho")]
    holding = [each for each in (waits, *more) if each.state is State.GRANTED]
    assert len(holding) == len(free)

    del site.engine.there["x"]
    site.reconciler.round()  # a list may be short: believed at the second look
    assert len(site.strays()) == 1
    site.reconciler.round()

    assert site.strays() == []
    assert trouble(site) == {}
    assert "stray-gone" in actions(site.hub)
    assert sorted(site.living().values()) == [G0, G1]  # who waited has it at once
    assert site.engine.cleared == []


def test_a_foreign_hubs_container_is_never_touched(site: Site) -> None:
    """Even where it has the number of a grant of ours that is over."""
    lease = site.grant("ada")
    site.end(lease)
    theirs = replace(lease, key=replace(lease.key, hub_id="other"))
    site.engine.put(theirs, run_id="running")
    site.engine.put(theirs, run_id="ended", runs=False)
    for _ in range(2):
        site.reconciler.round()
    assert site.engine.asked == ["list", "identity"] * 2
    assert [each.run_id for each in site.strays()] == ["running"]
    assert site.free() == [G1]


@pytest.mark.parametrize("devices", [(), ("GPU-of-another-machine",)])
def test_what_uses_no_device_of_the_host_is_no_matter(site: Site, devices: Any) -> None:
    site.engine.put(run_id="x", devices=devices)
    site.reconciler.round()
    assert site.strays() == []
    assert actions(site.hub).count("stray") == 0


def test_a_process_of_another_demo_is_no_matter_and_one_of_ours_is(site: Site) -> None:
    theirs = replace(key("ada"), hub_id="other")
    site.processes.put(run_id="p1", key=theirs, fence=5, attached=False, devices=(G0,))
    site.processes.put(run_id="p2", key=key("ben"), fence=6, attached=False, devices=(G1,))
    site.run("cho")
    site.reconciler.round()
    assert [each.run_id for each in site.strays()] == ["p2"]


def test_before_the_devices_are_known_it_may_use_any(
    site: Site, make_books: Callable[[], Ledger]
) -> None:
    site.use(make_books(), observed=False)
    site.engine.put(run_id="x", devices=("0",))
    site.reconciler.round()
    assert [each.devices for each in site.strays()] == [None]
    site.observe()
    assert site.free() == []
    site.reconciler.round()
    assert [each.devices for each in site.strays()] == [(G0,)]
    assert site.free() == [G1]


def test_what_stays_is_told_once_and_written_once(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.engine.put(run_id="x", devices=("0",))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            site.reconciler.round()
        site.restart()  # another agent knows it from the books
        site.reconciler.round()
    assert caplog.text.count("uses devices without a lease") == 1
    assert actions(site.hub).count("stray") == 1


def test_an_agent_that_was_restarted_believes_no_single_short_list(site: Site) -> None:
    site.engine.put(run_id="x", devices=("0",))
    site.reconciler.round()
    site.restart()
    site.engine.left_out = {"x"}
    site.reconciler.round()
    assert site.free() == [G1]
    site.engine.left_out = set()
    site.reconciler.round()
    site.reconciler.round()
    assert site.free() == [G1]
    assert actions(site.hub).count("stray") == 1


@pytest.mark.proves("P2")
def test_a_list_that_is_short_once_ends_no_lease(site: Site) -> None:
    lease = site.run("ada")
    site.engine.left_out = {lease.run_id or ""}
    site.reconciler.round()
    assert site.lease("ada") == lease


def test_two_hosts_do_not_disturb_each_other(site: Site) -> None:
    tower = Site(site.ledger, "tower", (device("t0"),))
    site.engine.put(run_id="x", devices=("0",))
    tower.engine.put(run_id="x", devices=None)
    for each in (site, tower, site, tower):
        each.reconciler.round()
    assert site.free() == [G1]
    assert {each.devices for each in site.strays()} == {(G0,), None}
    del tower.engine.there["x"]
    tower.engine.fails["list"] = SILENCE
    for each in (tower, site, tower, site):
        each.reconciler.round()
    assert site.free() == [G1]
    assert site.states()["tower", "docker"].silent_since == tower.now
    assert site.states()["lab", "docker"].silent_since is None
    del tower.engine.fails["list"]
    for each in (tower, site, tower, site):
        each.reconciler.round()
    assert site.free() == [G1, "GPU-t0"]


# Engines that fail.


@pytest.mark.proves("P2", "R3")
@pytest.mark.parametrize("call", ["list", "identity"])
@pytest.mark.parametrize(
    "error", [SILENCE, BROKEN, EngineRefusedError("not allowed", 403)]
)  # fmt: skip
def test_an_engine_that_does_not_answer_is_written_down_and_frees_nothing(
    site: Site, call: str, error: Exception
) -> None:
    lease = site.run("ada")
    site.engine.put(run_id="x", devices=("1",))
    site.processes.put(run_id="p", key=key("ben"), fence=6, attached=False, devices=(G1,))
    assert site.reconciler.round()
    assert site.states()["lab", "docker"].answered_at == after(100)
    site.engine.there.clear()
    site.engine.fails[call] = error
    for seconds in (200, 230, 260):
        site.now = after(seconds)
        assert not site.reconciler.round()
    state = site.states()["lab", "docker"]
    assert (state.answered_at, state.silent_since) == (after(100), after(200))
    assert state.detail == str(error)
    assert site.states()["lab", "process"].answered_at == after(260)
    assert site.lease("ada") == lease
    assert {each.run_id for each in site.strays()} == {"x", "p"}
    site.restart()
    site.now = after(300)
    site.reconciler.round()
    assert site.states()["lab", "docker"].silent_since == after(200)  # not since the restart

    site.engine.fails.clear()
    site.now = after(400)
    assert site.reconciler.round()
    state = site.states()["lab", "docker"]
    assert (state.answered_at, state.silent_since, state.detail) == (after(400), None, "")


@pytest.mark.parametrize(
    "error", [BROKEN, SILENCE, EngineRefusedError("in use", 409), KeyError("a bug")]
)  # fmt: skip
@pytest.mark.parametrize("step", ["clear", "look"])
def test_one_that_fails_does_not_stop_the_others_and_its_device_is_kept_clear_of(
    site: Site, make_books: Callable[[], Ledger], error: Exception, step: str
) -> None:
    late = [site.grant(user) for user in ("ada", "ben")]
    if step == "clear":
        for each in late:
            site.end(each)
    else:
        site.use(make_books())
    for each in late:
        site.engine.put(each, run_id=each.key.user)
    site.engine.fails[f"{step} ada"] = error
    assert site.reconciler.round()
    assert [(each.run_id, each.devices) for each in site.strays()] == [
        ("ada", (late[0].slices[0].device_uuid,))
    ]
    assert site.engine.cleared == (["ben"] if step == "clear" else [])
    assert site.living().get("ben") == (None if step == "clear" else late[1].slices[0].uuid)
    site.engine.fails.clear()
    for _ in range(3):
        site.reconciler.round()
    assert site.strays() == []
    assert (sorted(site.living()) == ["ada", "ben"]) is (step == "look")


@pytest.mark.parametrize("step", ["clear", "look"])
def test_an_engine_that_falls_silent_in_a_round_is_not_asked_on(
    site: Site, make_books: Callable[[], Ledger], step: str
) -> None:
    """Each question costs a time limit. It is silent if it does not even say who it is."""
    site.engine.put(run_id="x", devices=("0",))
    site.reconciler.round()
    late = [site.grant("ada"), site.grant("ben", may_wait=True)]
    site.end(late[0])
    if step == "look":
        site.use(make_books())
    site.engine.there = {}
    for n in range(4):
        site.engine.put(replace(late[0], fence=late[0].fence), run_id=f"c{n}")
        site.engine.fails[f"{step} c{n}"] = SILENCE

    def fall_silent(call: str) -> None:
        if call.startswith(step):
            site.engine.fails["identity"] = SILENCE

    site.engine.on_call = fall_silent
    site.engine.asked.clear()
    assert not site.reconciler.round()
    assert site.engine.asked == ["list", "identity", f"{step} c0", "identity"]
    assert site.states()["lab", "docker"].silent_since == site.now


# The ledger is away.


@pytest.mark.proves("R13")
@pytest.mark.parametrize("write", ["readopt", "report_strays", "note_engine"])
def test_a_ledger_that_goes_away_in_the_middle_is_said_and_the_next_round_completes(
    site: Site, make_books: Callable[[], Ledger], monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    site.run("ada")
    site.engine.put(run_id="x", devices=("1",))
    site.use(make_books())

    def away(*_: object, **__: object) -> None:
        raise LedgerAwayError("locked")

    with monkeypatch.context() as patch:
        patch.setattr(Observing, write, away)
        for _ in range(3):
            with pytest.raises(LedgerAwayError):
                site.reconciler.round()
    assert site.reconciler.round()
    assert site.living() == {"ada": G0}
    assert [each.run_id for each in site.strays()] == ["x"]
    assert site.free() == []
    assert site.states()["lab", "docker"].answered_at == site.now
