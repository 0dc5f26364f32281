"""A process dies, is slow or fails at each of its steps; within a minute all is as it should be.

What the steps are is not written here: each drill first records those of a clean run.
"""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuspawner.steps import NAMES
from tests.e2e.drills import (
    REPAIR_SECONDS,
    DrillSite,
    Troubles,
    open_site,
    own_agent,
    unique,
)
from tests.e2e.lab import Lab
from tests.rig.engine import OwnedEngine
from tests.rig.processes import wait_for

pytestmark = [pytest.mark.engine, pytest.mark.proves("R7")]

# How many of each kind of pair are tried: a number, or "all".
PAIRS = os.environ.get("GPUSPAWNER_DRILL_PAIRS", "2")


def record(site: DrillSite) -> dict[str, list[str]]:
    """Let a person start and stop with nothing in the way; return the hub's steps of each."""
    user, found = site.new_user(), {}
    for what, work in (("start", site.start_all), ("stop", site.stop_all)):
        mark = site.drill.mark()
        work([user])
        found[what] = unique(site.drill.trace("hub", mark))
    assert set().union(*found.values()) <= NAMES
    return found


def may_stand(name: str) -> bool:
    """Whether others go on while a thread of the hub stands at this step."""
    return name.startswith("engine:") or name.startswith("ledger:read")


def batches(found: dict[str, list[str]]) -> list[list[tuple[str, str]]]:
    """Put the steps of the hub into groups: its death shows all of a group at once.

    The last of each group is where the hub kills itself; at each of the others somebody's start
    or stop stands when it does.
    """
    pairs = every(found)
    last = [pair for pair in pairs if not may_stand(pair[1])]
    standing = [pair for pair in pairs if may_stand(pair[1])]
    groups: list[list[tuple[str, str]]] = [[] for _ in last]
    for at, pair in enumerate(standing):
        groups[at % len(groups)].append(pair)
    return [[*group, end] for group, end in zip(groups, last, strict=True)]


@pytest.mark.timeout(600)
def test_the_hub_is_killed_at_each_step_of_a_start_and_of_a_stop(
    make_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    site = open_site(make_lab, tmp_path, agent=True)
    lab, drill = site.lab, site.drill
    first, found = record(site), record(site)
    once = [name for name in first["start"] if name not in found["start"]]
    assert {"ledger:publish:before-commit", "engine:info:after"} <= set(once)
    assert {"ledger:request:after-commit", "engine:create_container:after"} <= set(found["start"])
    assert {"ledger:end:before-commit", "engine:stop:before"} <= set(found["stop"])
    site.start_healthy()

    for group in batches(found):
        users = {pair: site.new_user() for pair in group}
        leaving = [user for (what, _), user in users.items() if what == "stop"]
        site.start_all(leaving)
        for pair in group:
            what, name = pair
            is_last = pair == group[-1]
            order = drill.order("hub", name, "kill" if is_last else "stand")
            site.ask(what, users[pair])
            drill.wait(order)
        lab.hub.wait_killed()
        people = list(users.values())
        mark = drill.mark()

        lab.hub.start()

        lab.hub.wait_server("ben")
        # What only the first start of a hub's life passes, and not already its own.
        once = [name for name in once if name not in drill.trace("hub", mark)]
        if once:
            people.append(site.new_user())
            order = drill.order("hub", once.pop(), "kill")
            site.ask("start", people[-1])
            drill.wait(order)
            lab.hub.wait_killed()
            lab.hub.start()
        site.start_all(people)
        site.expect_running(people)
        site.check()
        site.stop_all(people)
        site.expect_only_ben()
        site.expect_one("agent")


def test_the_hub_is_killed_at_each_step_of_its_own_start(
    make_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    site = open_site(make_lab, tmp_path, agent=True)
    lab, drill = site.lab, site.drill
    site.start_healthy()
    lab.hub.kill()
    mark = drill.mark()
    lab.hub.start()
    lab.hub.wait_server("ben")
    names = unique(drill.trace("hub", mark))
    assert "engine:connect:before" in names

    for name in names:
        lab.hub.kill()
        order = drill.order("hub", name, "kill")
        with pytest.raises(RuntimeError, match="ended with status -9"):
            lab.hub.start()
        assert drill.is_done(order), name
        lab.hub.kill()  # to make way for the next

        lab.hub.start()

        lab.hub.wait_server("ben")
        site.check()
    site.expect_one("agent")
    user = site.new_user()
    site.start_all([user])
    site.expect_running([user])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("what", ["fail", "delay"])
def test_each_step_of_the_hub_fails_or_is_slow(
    make_lab: Callable[..., Lab], tmp_path: Path, what: str
) -> None:
    """Everybody gets a server or a refusal, and nothing is left over."""
    site = open_site(make_lab, tmp_path, agent=True)
    lab, drill = site.lab, site.drill
    first, found = record(site), record(site)
    lab.hub.restart()
    once = [name for name in first["start"] if name not in found["start"]]
    expect_all_met(site, [drill.order("hub", name, what) for name in once])
    site.start_healthy()
    pairs = every(found)
    # A failing read or look may end a start, so that later steps are not reached: few at once.
    size = 4 if what == "fail" else 12
    for at in range(0, len(pairs), size):
        group = pairs[at : at + size]
        people = [site.new_user() for _ in group]
        leaving = [user for user, (act, _) in zip(people, group, strict=True) if act == "stop"]
        site.start_all(leaving)
        for user, (act, name) in zip(people, group, strict=True):
            order = drill.order("hub", name, what)
            if act == "start":
                answer = lab.hub.start_server(user, options={"profile": "share"})
                assert answer.status in (201, 202, 503), answer.body
            else:
                answer = lab.hub.stop_server(user)
                assert answer.status in (202, 204, 500, 503), answer.body
            drill.wait(order)
        settled = [user for user in people if user not in leaving]
        wait_settled(lab, settled)
        site.stop_all(people)
        site.expect_only_ben(but_unsure=what == "fail")
    user = site.new_user()
    site.start_all([user])
    site.stop_all([user])
    assert "never retrieved" not in lab.hub.log()


def expect_all_met(site: DrillSite, orders: list[str]) -> None:
    """Let people start until each order was met; then everybody gets a server again."""
    for _ in orders:
        user = site.new_user()
        site.lab.hub.start_server(user, options={"profile": "share"})
        wait_settled(site.lab, [user])
        site.start_all([user])
        site.stop_all([user])
    assert all(map(site.drill.is_done, orders))


def wait_settled(lab: Lab, users: list[str]) -> None:
    """Wait until the hub is busy with none of these."""

    def look() -> bool:
        models = [lab.hub.server(user) for user in users]
        return not any(model and model["pending"] for model in models)

    wait_for("an end of all starts", look, REPAIR_SECONDS)


@pytest.mark.timeout(600)
def test_the_agent_is_killed_at_each_step(
    make_lab: Callable[..., Lab], tmp_path: Path, stub_image: str
) -> None:
    site = open_site(make_lab, tmp_path, agent=False)
    site.start_healthy()
    with own_agent(site, tmp_path / "agent") as agent:
        troubles = Troubles(site, stub_image, agent)
        names = steps_of_agent(site, agent, troubles)
        assert {"ledger:end:before-commit", "ledger:readopt:after-commit"} <= names.keys()
        agent.start()
        for name, kind in names.items():
            if not kind:  # some steps only its first round has
                agent.kill()
            order = site.drill.order("agent", name, "kill")
            if not kind:
                agent.launch()
            is_repaired = troubles.kinds[kind]() if kind else None
            try:
                site.drill.wait(order, REPAIR_SECONDS)
            except TimeoutError:
                raise TimeoutError(f"{name} is not reached by {kind}:\n{agent.log()}") from None
            agent.wait_killed()

            agent.start()

            if is_repaired is not None:
                wait_for(f"{kind} to be repaired after {name}", is_repaired, REPAIR_SECONDS)
            if kind != "stray":  # which stands with a device past all books, as it is meant to
                site.check()
            site.expect_one("agent")
            if kind:
                troubles.clear()
                site.check()
        user = site.new_user()
        site.start_all([user])
        site.expect_running([user])
        site.stop_all([user])
        site.expect_only_ben()


def steps_of_agent(site: DrillSite, agent: Any, troubles: Troubles) -> dict[str, str]:
    """The agent's steps, each with the trouble that leads it there; none for its daily round."""
    mark = site.drill.mark()
    agent.start()
    wait_for("a round", lambda: site.drill.trace("agent", mark).count("engine:info:after") or None)
    names = dict.fromkeys(unique(site.drill.trace("agent", mark)), "")
    for kind, make in troubles.kinds.items():
        mark = site.drill.mark()
        is_repaired = make()
        wait_for(f"{kind} to be repaired", is_repaired, REPAIR_SECONDS)
        for name in unique(site.drill.trace("agent", mark)):
            names.setdefault(name, kind)
        troubles.clear()
    agent.kill()
    assert names.keys() <= NAMES
    return names


@pytest.mark.timeout(600)
def test_each_step_of_the_agent_fails_or_is_slow(
    make_lab: Callable[..., Lab], tmp_path: Path, stub_image: str
) -> None:
    site = open_site(make_lab, tmp_path, agent=False)
    site.start_healthy()
    with own_agent(site, tmp_path / "agent") as agent:
        troubles = Troubles(site, stub_image, agent)
        names = steps_of_agent(site, agent, troubles)
        # "after" the events is passed when their stream ends in order, which a kill only brings.
        agent.start()
        for what in ("fail", "delay"):
            orders = [site.drill.order("agent", name, what) for name in names if is_again(name)]
            repaired = [make() for make in troubles.kinds.values()]
            for number, is_repaired in enumerate(repaired):
                wait_for(f"trouble {number} to be repaired", is_repaired, REPAIR_SECONDS)
            for order in orders:
                site.drill.wait(order, REPAIR_SECONDS)
            troubles.clear()
            site.check()
        site.expect_one("agent")
        assert "Traceback" not in agent.log()


def is_again(name: str) -> bool:
    """Whether an agent passes a step more than once in its life."""
    return name.rpartition(":")[0] not in (
        "engine:connect", "engine:info", "engine:inspect_image", "engine:events", "ledger:open",
    )  # fmt: skip


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["hub and agent", "hub and engine", "agent and engine"])
def test_two_die_at_once(
    make_engine: Callable[..., OwnedEngine],
    make_lab: Callable[..., Lab],
    tmp_path: Path,
    stub_image: str,
    kind: str,
) -> None:
    """At pairs of steps, drawn by a seed; containers outlive the engine (live-restore)."""
    engine = make_engine(live_restore=True)
    site = open_site(make_lab, tmp_path, agent=False, on=engine)
    lab, drill = site.lab, site.drill
    record(site)  # what only the first start passes is passed
    found = record(site)
    site.start_healthy()
    of_hub = [pair for pair in every(found) if may_stand(pair[1])]
    with own_agent(site, tmp_path / "agent") as agent:
        troubles = Troubles(site, stub_image, agent)
        of_agent = [pair for pair in steps_of_agent(site, agent, troubles).items() if pair[1]]
        hubs = of_hub if "hub" in kind else [("", "")]
        agents = of_agent if "agent" in kind else [("", "")]
        for (act, hub_step), (agent_step, trouble) in drawn(kind, hubs, agents):
            told = f"{kind}: {act} {hub_step}, {trouble} {agent_step}"
            agent.start()
            people = [site.new_user()]
            if act == "stop":
                site.start_all(people)
            is_repaired: Callable[[], bool] = lambda: True  # noqa: E731
            if agent_step:
                order = drill.order("agent", agent_step, "stand")
                is_repaired = troubles.kinds[trouble]()
                drill.wait(order)
            if hub_step:
                order = drill.order("hub", hub_step, "stand")
                site.ask(act, people[0])
                drill.wait(order)
            agent.kill()
            if "hub" in kind:
                lab.hub.kill()
            if "engine" in kind:
                engine.kill()
                engine.start()
            if "hub" in kind:
                lab.hub.start()
            agent.start()

            wait_for(f"repair after {told}", is_repaired, REPAIR_SECONDS)
            lab.hub.wait_server("ben")
            site.start_all(people)
            site.expect_running(people)
            site.stop_all(people)
            troubles.clear()
            site.check()
            site.expect_one("agent")
            agent.kill()


def every(found: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(what, name) for what, names in found.items() for name in names]


def drawn(kind: str, hubs: list[Any], agents: list[Any]) -> list[tuple[Any, Any]]:
    """All pairs, or as many as `PAIRS` says, the same ones in each run."""
    pairs = [(one, other) for one in hubs for other in agents]
    if PAIRS == "all":
        return pairs
    return random.Random(kind).sample(pairs, min(int(PAIRS), len(pairs)))
