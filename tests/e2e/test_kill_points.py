"""A process dies, is slow or fails at each of its steps; within a minute all is as it should be.

What the steps are is not written here: each drill first records those of a clean run.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.doubles.drill import DRILLED, operations
from tests.e2e.drills import (
    REPAIR_SECONDS,
    DrillSite,
    every,
    may_stand,
    open_site,
    record,
    unique,
)
from tests.e2e.lab import Lab
from tests.rig.processes import wait_for

pytestmark = [pytest.mark.engine, pytest.mark.proves("R7")]


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
    assert operations([*first["start"], *first["stop"]]) >= DRILLED["hub"]
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
        site.check()
    for name in ("hub:servers:before", "hub:servers:after"):
        lab.hub.kill()
        order = drill.order("agent", name, "kill")  # where it asks the hub that started it
        lab.hub.start()
        lab.hub.wait_server("ben")
        drill.wait(order, REPAIR_SECONDS)
        site.expect_one("agent")
        site.check()
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
    if what == "fail":  # what the hub asks of us does not fail without a cause among the others
        pairs = [pair for pair in pairs if not pair[1].startswith("hub:")]
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
