"""The agent dies, is slow or fails at each of its steps, alone and together with hub or engine."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.drill import DRILLED, operations
from tests.e2e.drills import (
    REPAIR_SECONDS,
    DrillSite,
    every,
    may_stand,
    open_site,
    own_agent,
    record,
)
from tests.e2e.lab import Lab
from tests.e2e.troubles import Troubles, steps_of_agent
from tests.rig.engine import OwnedEngine
from tests.rig.processes import wait_for

pytestmark = [pytest.mark.engine, pytest.mark.proves("R7")]

# How many of each kind of pair are tried: a number, or by hand a part of all, such as "2/3"; all of
# them take an hour and more of one processor.
PAIRS = os.environ.get("GPUSPAWNER_DRILL_PAIRS", "1")
PAIRS_SECONDS = 600 if PAIRS.isdigit() else 4 * 3600


@pytest.mark.timeout(600)
def test_the_agent_is_killed_at_each_step(
    make_lab: Callable[..., Lab], tmp_path: Path, stub_image: str
) -> None:
    site = open_site(make_lab, tmp_path, agent=False)
    site.start_healthy()
    with own_agent(site, tmp_path / "agent") as agent:
        troubles = Troubles(site, stub_image, agent)
        names = steps_of_agent(site, agent, troubles)
        assert operations(names) >= DRILLED["agent"] - {"hub:servers"}
        agent.start()
        for name, kind in names.items():
            if not kind:  # some steps only its first round has
                agent.kill()
            order = site.drill.order("agent", name, "kill")
            if not kind:
                agent.launch()
            is_repaired = troubles.lead_to(order, kind) if kind else None
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
    """Whether an agent passes a step more than once in its life, and more often than rarely."""
    return name.rpartition(":")[0] not in (
        "engine:connect", "engine:info", "engine:inspect_image", "engine:events", "ledger:open",
        "ledger:seen-alive",
    )  # fmt: skip


@pytest.mark.timeout(PAIRS_SECONDS)
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
            print(told)
            agent.start()
            people = [site.new_user()]
            if act == "stop":
                site.start_all(people)
            # The hub first: it stands where it holds nobody up, an agent also in mid-transaction.
            if hub_step:
                order = drill.order("hub", hub_step, "stand")
                site.ask(act, people[0])
                expect_stand(site, order, told)
            is_repaired: Callable[[], bool] = lambda: True  # noqa: E731
            if agent_step:
                order = drill.order("agent", agent_step, "stand")
                is_repaired = troubles.lead_to(order, trouble)
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


def expect_stand(site: DrillSite, order: str, told: str) -> None:
    try:
        site.drill.wait(order)
    except TimeoutError:
        raise TimeoutError(f"the hub does not come there; {told}") from None


def drawn(kind: str, hubs: list[Any], agents: list[Any]) -> list[tuple[Any, Any]]:
    """As many pairs as `PAIRS` says, the same ones in each run."""
    pairs = [(one, other) for one in hubs for other in agents]
    if not PAIRS.isdigit():
        part, parts = map(int, PAIRS.split("/"))
        return pairs[part - 1 :: parts]
    return random.Random(kind).sample(pairs, min(int(PAIRS), len(pairs)))
