"""Foreign use: when what belongs to no lease takes a device or an instance out of what is free."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from gpuspawner.domain.devices import DeviceUUID, HostId, Trouble, Unavailable
from gpuspawner.domain.foreign import (
    FOREIGN_LIMIT_MIB,
    foreign_use,
    known_of,
    with_foreign_use,
)
from gpuspawner.domain.placement import availability
from gpuspawner.domain.pool import Pool
from gpuspawner.domain.uses import Attribution, ForeignProcess, UnitUse
from gpuspawner.ledger.encoding import decode_inventory, encode_inventory
from tests.builders import SMALL_MIG, T0, WHOLE, device, inventory, mig_device, sharing_policy

A = DeviceUUID("GPU-a")
LAB = inventory(device("a"), device("b", index=1))


def process(
    memory_mib: int | None, container: str | None = None, command: str = "", **values: bool
) -> ForeignProcess:
    return ForeignProcess(
        pid=7, memory_mib=memory_mib, container=container, command=command, **values
    )  # fmt: skip


def used(uuid: str, *foreign: ForeignProcess, untold: int | None = 0) -> Attribution:
    """Make what was found on one device or instance, and nothing of the others."""
    sizes = [each.memory_mib for each in foreign]
    unit = UnitUse(
        uuid=DeviceUUID(uuid), used_mib=9000, leases_mib=0, overhead_mib=0, untold_mib=untold,
        foreign_mib=None if None in sizes else sum(size or 0 for size in sizes), foreign=foreign,
    )  # fmt: skip
    return Attribution(host_id=HostId("lab"), observed_at=T0, units=(unit,))


def unlisted(uuid: str) -> Attribution:
    unit = UnitUse(uuid=DeviceUUID(uuid), used_mib=9000)
    return Attribution(host_id=HostId("lab"), observed_at=T0, units=(unit,))


def judged(
    found: Attribution,
    earlier: Attribution | None = None,
    known: Mapping[DeviceUUID, str] = {},
) -> str | None:
    """Judge the first device of the lab."""
    return foreign_use(found, earlier, known).get(A)


@pytest.mark.parametrize(
    ("memory_mib", "trouble"),
    [(0, None), (FOREIGN_LIMIT_MIB, None), (FOREIGN_LIMIT_MIB + 1, Trouble.FOREIGN)],
)
def test_more_than_a_gibibyte_takes_a_device_away_and_no_other(
    memory_mib: int, trouble: Trouble | None
) -> None:
    verdicts = foreign_use(used("GPU-a", process(memory_mib, "old-training")), None, {})
    seen = with_foreign_use(LAB, verdicts)
    assert known_of(seen) == verdicts
    pool = Pool(sharing_policy(), [seen], now=T0)
    assert pool.devices["GPU-b"].unavailable is None
    assert getattr(pool.devices["GPU-a"].unavailable, "trouble", None) == trouble
    assert availability(pool, WHOLE).free == 2 - bool(trouble)


def test_it_says_what_uses_it_the_largest_first_and_each_once() -> None:
    processes = (
        process(300, command="Xorg"), process(2048, "old-training"), process(1024, "old-training"),
        process(None), process(500, command="train.py"),
    )  # fmt: skip
    who = "old-training (3 GiB), train.py (500 MiB), Xorg (300 MiB), …"
    assert judged(used("GPU-a", *processes)) == who
    seen = with_foreign_use(LAB, {A: who})
    assert Pool(sharing_policy(), [seen], now=T0).devices["GPU-a"].unavailable == Unavailable(
        trouble=Trouble.FOREIGN, detail=who, cleared_by="stopping what uses it"
    )


def test_one_whose_memory_is_unknown_hides_no_large_one_and_is_none_by_itself() -> None:
    assert judged(used("GPU-a", process(None), process(40_960, "old-training"))) is not None
    assert judged(used("GPU-a", process(None), process(100, "monitor"))) is None


def test_what_the_operator_tolerates_does_not_count() -> None:
    monitor = process(3000, "monitor", tolerated=True)
    assert judged(used("GPU-a", monitor, process(1000, "Xorg"))) is None
    assert judged(used("GPU-a", monitor, process(2000, "old-training"))) == "old-training (2 GiB)"


@pytest.mark.proves("P5")
def test_what_cannot_be_told_changes_nothing() -> None:
    """Unknown is not gone, and it alarms nobody by itself."""
    before = foreign_use(used("GPU-a", process(5000, "old-training")), None, {})
    why = before[A]
    for found in (unlisted("GPU-a"), used("GPU-a", process(None)), used("GPU-a", untold=None),
                  used("GPU-a", untold=5000)):  # fmt: skip
        assert judged(found, known=before) == why
        assert judged(found) is None
    assert judged(used("GPU-a", process(10)), known=before) is None


def test_one_that_cannot_be_traced_is_ending_in_one_look_and_stuck_in_two() -> None:
    """A dead process whose memory the driver never gave back."""
    stuck = used("GPU-a", untold=40_960)
    assert judged(stuck) is None
    who = judged(stuck, stuck)
    assert who == "a process that cannot be traced (40 GiB)"
    assert judged(used("GPU-a"), stuck, {A: who}) is None
    assert judged(stuck, used("GPU-a", untold=10)) is None


@pytest.mark.proves("P5")
def test_what_is_not_there_to_be_asked_is_still_used() -> None:
    """An agent that has just begun may not find a GPU, or not be able to ask any."""
    known = {A: "old-training (5 GiB)"}
    found = Attribution(host_id=HostId("lab"), observed_at=T0)
    assert foreign_use(found, None, known) == known
    assert foreign_use(used("GPU-b"), None, known) == known


@pytest.mark.proves("P5")
def test_trouble_of_the_hardware_comes_first_and_hides_foreign_use_from_no_later_agent() -> None:
    """It hangs, the agent begins anew, it answers again, and does not list its processes."""
    sick = Unavailable(trouble=Trouble.UNKNOWN, detail="The GPU does not answer within 3 s.")
    users = {A: "old-training (5 GiB)"}
    written = with_foreign_use(inventory(replace(device("a"), unavailable=sick)), users)
    assert Pool(sharing_policy(), [written], now=T0).devices["GPU-a"].unavailable == sick
    known = known_of(decode_inventory("lab", T0, encode_inventory(written)))
    assert judged(unlisted("GPU-a"), known=known) == users[A]


def test_a_device_that_was_partitioned_since_is_judged_by_its_instances() -> None:
    seen = inventory(mig_device("a", 5))
    known = {A: "old-training (5 GiB)"}
    users = foreign_use(used(seen.devices[0].instances[0].uuid), None, known)
    pool = Pool(sharing_policy(), [with_foreign_use(seen, users)], now=T0)
    assert (pool.devices["GPU-a"].unavailable, availability(pool, SMALL_MIG).free) == (None, 1)


def test_an_instance_is_taken_away_alone() -> None:
    seen = inventory(mig_device("m", 5, 5))
    first, second = seen.devices[0].instances
    after = with_foreign_use(seen, foreign_use(used(first.uuid, process(2000)), None, {}))
    assert set(known_of(after)) == {first.uuid}
    pool = Pool(sharing_policy(), [after], now=T0)
    assert pool.devices["GPU-m"].unavailable is None
    assert set(pool.devices["GPU-m"].unavailable_units) == {first.uuid}
    counted = availability(pool, SMALL_MIG)
    assert (counted.free, counted.total, counted.unavailable) == (1, 2, 1)
    assert second.uuid in {each.uuid for _, each in pool.instances(None, free=True)}
