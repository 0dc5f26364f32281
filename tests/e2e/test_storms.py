"""Many at once, again and again: nobody meets anybody else's container, name or lease.

Twenty start, stop, and start again while others still stop and two processes burn the machine's
CPUs (case 02); two start and stop while the engine refuses the first two creates of each start, as
it does while a removal goes on (case 32). A few rounds here; ``GPUSPAWNER_STORM_ROUNDS=50`` for
fifty.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from gpuspawner.domain.leases import Lease, State
from gpuspawner.domain.reasons import Code
from tests.doubles.engine_faults import CREATE
from tests.doubles.fault_proxy import FaultProxy
from tests.e2e.lab import PATIENT, QUICK_AGENT, Lab, through
from tests.rig.engine import OwnedEngine
from tests.rig.hub_api import Answer
from tests.rig.processes import run_mark

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]

ROUNDS = int(os.environ.get("GPUSPAWNER_STORM_ROUNDS", "2"))
PAIR_ROUNDS = int(os.environ.get("GPUSPAWNER_STORM_ROUNDS", "10"))
CLASS = [f"student{number}" for number in range(1, 21)]
SHARED = [{"select": "*", "modes": ["time-sliced"]}]


@pytest.fixture
def storm_engine(make_engine: Callable[..., OwnedEngine]) -> OwnedEngine:
    """An engine of its own: after a storm some forget to let a network's last address go."""
    return make_engine()


@pytest.fixture
def proxy(storm_engine: OwnedEngine) -> Iterator[FaultProxy]:
    with FaultProxy(storm_engine.url) as proxy:
        yield proxy


@pytest.fixture
def lab(storm_engine: OwnedEngine, proxy: FaultProxy, make_lab: Callable[..., Lab]) -> Lab:
    """A pool with 28 places of the profile that all want."""
    lab = make_lab(
        on=storm_engine, agent=True, preset="four-a100", devices=SHARED, groups={"ml101": CLASS},
        config=through(proxy) + PATIENT + QUICK_AGENT,
    )  # fmt: skip
    for user in CLASS:
        lab.hub.add_user(user)
    return lab


@contextmanager
def busy_machine() -> Iterator[None]:
    """Two processes that do nothing but burn their CPU."""
    burn = [sys.executable, "-c", "while True: pass"]
    env = {**os.environ, **run_mark()}
    burning = [subprocess.Popen(burn, env=env) for _ in range(2)]
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()


async def start(lab: Lab, user: str) -> Answer:
    answer = await lab.hub.start_server_async(user, options={"profile": "share"})
    assert answer.status == 201, (user, answer.body)
    return answer


async def stop(lab: Lab, user: str) -> Answer:
    answer = await lab.hub.api_async("DELETE", f"/users/{user}/server")
    assert answer.status == 204, (user, answer.body)
    return answer


async def again(lab: Lab, user: str) -> None:
    await stop(lab, user)
    await start(lab, user)


def expect_running(lab: Lab, users: list[str]) -> dict[str, Lease]:
    """Each has one lease, and one container by it; nobody else has anything."""
    living = {lease.key.user: lease for lease in lab.living()}
    assert sorted(living) == sorted(users)
    assert {lease.state for lease in living.values()} <= {State.RUNNING}
    found = {}
    for container in lab.containers():
        labels = container["Config"]["Labels"]
        assert container["State"]["Running"]
        found[labels["org.gpuspawner.user"]] = labels["org.gpuspawner.fence"]
    assert len(lab.containers()) == len(users)
    assert found == {user: str(lease.fence) for user, lease in living.items()}
    lab.check()
    return living


def expect_history(lab: Lab, user: str, starts: int) -> None:
    """As many leases as starts, each granted once and ended once, in the person's own name."""
    leases = lab.leases(user)
    assert len(leases) == starts, user
    for lease in leases:
        assert lease.reason is None or lease.reason.code is Code.STOPPED, lease
        actions = lab.audit(lease.lease_id)
        assert actions.count("grant") == 1, actions
        assert actions.count("end") == (lease.state is State.ENDED), actions


async def timed(what: str, *calls: object) -> None:
    began = time.monotonic()
    await asyncio.gather(*calls)  # type: ignore[call-overload]
    print(f"{what}: {time.monotonic() - began:.1f} s")


@pytest.mark.proves("P1", "P4", "R1")
async def test_twenty_at_once_start_stop_and_start_again_under_load(lab: Lab) -> None:
    with busy_machine():
        for number in range(ROUNDS):
            await timed(f"round {number + 1}: twenty start", *(start(lab, user) for user in CLASS))
            before = expect_running(lab, CLASS)
            half = CLASS[number % 2 :: 2]
            await timed("ten stop and start again", *(again(lab, user) for user in half))
            after = expect_running(lab, CLASS)
            # Who stayed has the same lease all through; who came back has a new one.
            kept = {user for user in CLASS if after[user].lease_id == before[user].lease_id}
            assert kept == set(CLASS) - set(half)
            await timed("twenty stop", *(stop(lab, user) for user in CLASS))
            expect_running(lab, [])
    for user in CLASS:
        expect_history(lab, user, ROUNDS + sum(user in CLASS[n % 2 :: 2] for n in range(ROUNDS)))
    assert "Conflict" not in lab.hub.log()


@pytest.mark.proves("R5")
async def test_a_name_that_is_not_free_yet_reaches_nobody(lab: Lab, proxy: FaultProxy) -> None:
    pair = CLASS[:2]
    began = time.monotonic()
    for number in range(PAIR_ROUNDS):
        # Two creates each: whose they are is left to chance.
        taken = proxy.fault("POST", CREATE, status=409, times=2 * len(pair))
        await asyncio.gather(*((start if number == 0 else again)(lab, user) for user in pair))
        assert taken.count == 2 * len(pair)
        expect_running(lab, pair)
    print(f"{PAIR_ROUNDS} rounds of two: {time.monotonic() - began:.1f} s")
    for user in pair:
        expect_history(lab, user, PAIR_ROUNDS)
