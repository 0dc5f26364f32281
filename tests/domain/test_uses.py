"""What a lease uses of all its devices, from what was seen of each."""

from dataclasses import replace
from datetime import datetime

import pytest

from gpuspawner.domain.devices import DeviceUUID, HostId
from gpuspawner.domain.leases import Lease, State
from gpuspawner.domain.pool import FRESH_FOR
from gpuspawner.domain.uses import Attribution, LeaseUse, OwnProcess, Use, fresh_uses, uses_of
from tests.builders import PAIR, T0, after, hold_of, key

LAB, RENAMED = HostId("lab"), HostId("tower")
PAIR_OF_ADA = Lease(
    lease_id=1, key=key("ada"), state=State.RUNNING, profile=PAIR, image=None, engine="docker",
    requested_at=T0, granted_at=T0, running_at=T0, run_id="c1",
    slices=(hold_of(1, "GPU-a").slice, hold_of(1, "GPU-b").slice),
)  # fmt: skip


def process(memory_mib: int | None, busy_percent: int | None = 0) -> OwnProcess:
    return OwnProcess(pid=7, memory_mib=memory_mib, busy_percent=busy_percent)


def use(name: str, *processes: OwnProcess, memory_mib: int | None = 100, busy: int | None = 30,
        listed: bool = True) -> Use:  # fmt: skip
    return Use(lease_id=1, uuid=DeviceUUID(f"GPU-{name}"), memory_mib=memory_mib,
               busy_percent=busy, processes=processes if listed else None)  # fmt: skip


def seen(*uses: Use, host: HostId = LAB, at: datetime = T0) -> dict[HostId, Attribution]:
    return {host: Attribution(host_id=host, observed_at=at, uses=uses)}


BOTH = seen(use("a", process(60), process(40)), use("b", process(160), memory_mib=160, busy=80))


def test_a_lease_of_two_devices_adds_up() -> None:
    assert uses_of([PAIR_OF_ADA], BOTH, T0) == {
        1: LeaseUse(observed_at=T0, memory_mib=260, busy_percent=80,
                    processes=(process(60), process(40), process(160)))
    }  # fmt: skip


@pytest.mark.proves("P5")
def test_what_is_unknown_of_one_device_is_unknown_of_all() -> None:
    hidden = seen(use("a", process(60)), use("b", memory_mib=None, busy=None, listed=False))
    assert uses_of([PAIR_OF_ADA], hidden, T0) == {
        1: LeaseUse(observed_at=T0, memory_mib=None, busy_percent=None, processes=None)
    }
    assert uses_of([PAIR_OF_ADA], seen(use("a")), T0) == {}  # granted since the look


@pytest.mark.proves("P5")
def test_what_is_old_or_was_never_seen_is_unknown() -> None:
    assert set(uses_of([PAIR_OF_ADA], BOTH, T0 + FRESH_FOR)) == {1}
    assert uses_of([PAIR_OF_ADA], BOTH, T0 + 1.01 * FRESH_FOR) == {}
    assert uses_of([PAIR_OF_ADA], {}, T0) == {}
    assert uses_of([replace(PAIR_OF_ADA, lease_id=2)], BOTH, T0) == {}
    ended = replace(PAIR_OF_ADA, state=State.ENDED, ended_at=T0)
    assert uses_of([ended], BOTH, T0) == {}


def test_a_lease_whose_host_has_another_name_now_is_known_by_its_devices() -> None:
    """What the former name said last is not taken for newer, in whatever order they come."""
    new = seen(use("a", memory_mib=1), use("b", memory_mib=2), host=RENAMED, at=after(5))
    for attributions in ({**BOTH, **new}, {**new, **BOTH}, new):
        found = uses_of([PAIR_OF_ADA], attributions, after(6))[1]
        assert (found.memory_mib, found.observed_at) == (3, after(5))
        assert fresh_uses(attributions, after(6))[1, DeviceUUID("GPU-a")].memory_mib == 1
