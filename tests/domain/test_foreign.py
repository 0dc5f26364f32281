"""Foreign use: when what belongs to no lease takes a device or an instance out of what is free."""

from dataclasses import replace

import pytest

from gpuspawner.domain.attribution import Attribution, ForeignProcess, UnitUse
from gpuspawner.domain.devices import DeviceUUID, HostId, HostInventory, Trouble, Unavailable
from gpuspawner.domain.foreign import FOREIGN_LIMIT_MIB, with_foreign_use
from gpuspawner.domain.placement import availability
from gpuspawner.domain.pool import Pool
from tests.builders import SMALL_MIG, T0, WHOLE, device, inventory, mig_device, sharing_policy

A = DeviceUUID("GPU-a")
LAB = inventory(device("a"), device("b", index=1))


def process(
    memory_mib: int | None, container: str | None = None, command: str = ""
) -> ForeignProcess:
    return ForeignProcess(pid=7, memory_mib=memory_mib, container=container, command=command)


def used(uuid: str, memory_mib: int | None, *foreign: ForeignProcess) -> Attribution:
    """Make what was found on one device or instance, and nothing of the others."""
    unit = UnitUse(
        uuid=DeviceUUID(uuid), used_mib=memory_mib, foreign_mib=memory_mib, foreign=foreign
    )  # fmt: skip
    return Attribution(host_id=HostId("lab"), observed_at=T0, units=(unit,))


def judged(
    found: Attribution, seen: HostInventory = LAB, before: HostInventory | None = None
) -> dict[str, Unavailable | None]:
    devices = with_foreign_use(seen, found, before).devices
    return {each.uuid: each.unavailable for item in devices for each in (item, *item.instances)}


@pytest.mark.parametrize(
    ("memory_mib", "trouble"),
    [(0, None), (FOREIGN_LIMIT_MIB, None), (FOREIGN_LIMIT_MIB + 1, Trouble.FOREIGN)],
)
def test_more_than_a_gibibyte_takes_a_device_away_and_no_other(
    memory_mib: int, trouble: Trouble | None
) -> None:
    found = judged(used("GPU-a", memory_mib, process(memory_mib, "old-training")))
    assert found["GPU-b"] is None
    assert getattr(found["GPU-a"], "trouble", None) == trouble


def test_it_says_what_uses_it_the_largest_first_and_each_once() -> None:
    processes = (
        process(300, command="Xorg"), process(2048, "old-training"), process(1024, "old-training"),
        process(None), process(500, command="train.py"),
    )  # fmt: skip
    why = judged(used("GPU-a", 3872, *processes))["GPU-a"]
    assert why == Unavailable(
        trouble=Trouble.FOREIGN,
        detail="old-training (3 GiB), train.py (500 MiB), Xorg (300 MiB), …",
        cleared_by="stopping what uses it",
    )  # fmt: skip


@pytest.mark.proves("P5")
def test_what_cannot_be_told_changes_nothing() -> None:
    """Unknown is not gone, and it alarms nobody by itself."""
    before = with_foreign_use(LAB, used("GPU-a", 5000, process(5000, "old-training")), None)
    why = before.devices[0].unavailable
    assert why is not None
    assert judged(used("GPU-a", None), before=before)["GPU-a"] == why
    assert judged(Attribution(host_id=HostId("lab"), observed_at=T0), before=before)["GPU-a"] == why
    assert judged(used("GPU-a", None))["GPU-a"] is None
    assert judged(used("GPU-a", 10), before=before)["GPU-a"] is None


def test_what_the_hardware_says_comes_first_and_is_not_kept_by_foreign_use() -> None:
    sick = Unavailable(trouble=Trouble.SICK, detail="Xid 79")
    seen = inventory(replace(device("a"), unavailable=sick))
    assert judged(used("GPU-a", 5000, process(5000)), seen)["GPU-a"] == sick
    assert judged(used("GPU-a", None), before=seen)["GPU-a"] is None  # and is well again


def test_an_instance_is_taken_away_alone() -> None:
    seen = inventory(mig_device("m", 5, 5))
    first, second = seen.devices[0].instances
    found = used(first.uuid, 2000, process(2000, command="python3"))
    after = with_foreign_use(seen, found, None)
    assert after.devices[0].unavailable is None
    pool = Pool(sharing_policy(), [after], now=T0)
    assert {uuid: why.trouble for uuid, why in pool.devices["GPU-m"].unavailable_units.items()} == {
        first.uuid: Trouble.FOREIGN
    }
    counted = availability(pool, SMALL_MIG)
    assert (counted.free, counted.total, counted.unavailable) == (1, 2, 1)
    assert second.uuid in {each.uuid for _, each in pool.instances(None, free=True)}


def test_a_device_that_is_used_from_outside_is_not_free() -> None:
    seen = with_foreign_use(LAB, used("GPU-a", 5000, process(5000)), None)
    assert availability(Pool(sharing_policy(), [seen], now=T0), WHOLE).free == 1
