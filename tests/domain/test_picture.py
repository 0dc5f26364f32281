"""The picture of a pool: who is shown what of it, and what each part is."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.domain.devices import Mode, Trouble, Unavailable
from gpuspawner.domain.leases import Lease, State
from gpuspawner.domain.picture import (
    HELD_OTHERWISE,
    NOT_HANDED_OUT,
    NOT_REPORTED,
    PARTITIONING_UNKNOWN,
    SHARES_NOT_HELD,
    DevicePicture,
    Shown,
    Viewer,
    draw,
)
from gpuspawner.domain.policy import DeviceRule, Policy
from gpuspawner.domain.pool import Pool
from gpuspawner.domain.slices import Hold
from tests.builders import (
    ML_SHARE,
    T0,
    WHOLE,
    after,
    device,
    hold_of,
    inventory,
    key,
    mig_device,
    share_hold,
    sharing_policy,
)

ADA = Viewer(hub_id="hub", user="ada")
ADMIN = Viewer(hub_id="hub", user="admin", admin=True)
SHARES_ONLY = Policy(rules=(DeviceRule(modes=frozenset({Mode.TIME_SLICED})),))


def lease(lease_id: int, user: str, *holds: Hold, hub: str = "hub", server: str = "") -> Lease:
    return Lease(
        lease_id=lease_id, key=replace(key(user, server), hub_id=hub), state=State.RUNNING,
        profile=WHOLE, image=None, engine="docker", requested_at=T0,
        slices=tuple(hold.slice for hold in holds),
    )  # fmt: skip


def picture(
    *devices, leases=(), holds=(), viewer=ADA, policy=None, now=T0, cordons=None, **host
) -> tuple[DevicePicture, ...]:
    policy = policy or sharing_policy()
    pool = Pool(policy, [inventory(*devices, **host)], cordons, holds, now=now)
    return draw(pool, leases, viewer)


def shown(item: DevicePicture) -> list[str]:
    return [str(part.shown) for part in item.slices]


def test_an_empty_device_is_one_free_part_for_each_way_that_it_may_be_handed_out():
    (item,) = picture(device("a"))
    (part,) = item.slices
    assert (part.shown, part.slice_id, part.memory_mib) == (Shown.FREE, None, 16384)
    assert part.modes == (Mode.WHOLE, Mode.TIME_SLICED)


@pytest.mark.parametrize(
    ("viewer", "state", "named"),
    [(ADA, "own", True), (Viewer(hub_id="hub", user="ben"), "busy", False),
     (ADMIN, "busy", True), (Viewer(hub_id="other", user="ada"), "busy", False),
     (Viewer(hub_id="other", user="root", admin=True), "busy", False)],
)  # fmt: skip
def test_who_holds_a_slice_is_told_to_its_holder_and_to_the_hubs_admins(viewer, state, named):
    hold = hold_of(1, "GPU-a")
    (item,) = picture(device("a"), leases=[lease(1, "ada", hold)], holds=[hold], viewer=viewer)
    assert shown(item) == [state]
    assert (item.slices[0].lease is not None) is named


def test_shares_leave_room_and_keep_the_headroom_back():
    holds = [share_hold(n, "GPU-a", n, 4096, "ml101") for n in (10, 2)]
    leases = [lease(10, "ada", holds[0]), lease(2, "ben", holds[1])]
    (item,) = picture(device("a"), leases=leases, holds=holds)
    assert [part.slice_id for part in item.slices] == ["GPU-a/share-2", "GPU-a/share-10", None]
    assert shown(item) == ["busy", "own", "free"]
    assert item.slices[-1].memory_mib == 16384 - 512 - 2 * 4096
    assert item.headroom_mib == 512


def test_a_device_full_of_shares_has_no_room_part():
    hold = share_hold(1, "GPU-a", 0, 16384 - 512, "ml101")
    (item,) = picture(device("a"), leases=[lease(1, "ada", hold)], holds=[hold])
    assert shown(item) == ["own"]


def test_instances_are_drawn_one_by_one_in_the_drivers_order():
    hold = hold_of(1, "GPU-m", mode=Mode.INSTANCE, unit="MIG-m-1", memory_mib=5120)
    (item,) = picture(
        mig_device("m", 5, 5, 10), leases=[lease(1, "ada", hold)], holds=[hold],
        cordons={"MIG-m-2": "for the exam"},
    )  # fmt: skip
    assert shown(item) == ["free", "own", "unavailable"]
    assert item.slices[2].unavailable is not None
    assert item.slices[2].unavailable.detail == "for the exam"


def test_an_instance_that_is_held_and_no_longer_listed_is_still_shown():
    hold = hold_of(1, "GPU-m", mode=Mode.INSTANCE, unit="MIG-old", memory_mib=5120)
    (item,) = picture(mig_device("m", 5), leases=[lease(1, "ada", hold)], holds=[hold])
    assert [part.slice_id for part in item.slices] == ["MIG-m-0", "MIG-old"]
    assert shown(item) == ["free", "own"]


def test_a_device_partitioned_under_its_holder_offers_no_instance():
    hold = hold_of(1, "GPU-m")
    (item,) = picture(mig_device("m", 5), leases=[lease(1, "ada", hold)], holds=[hold])
    assert shown(item) == ["unavailable", "own"]
    assert item.slices[0].unavailable is not None
    assert item.slices[0].unavailable.detail == HELD_OTHERWISE


@pytest.mark.parametrize("trouble", list(Trouble))
def test_trouble_makes_what_is_free_unavailable_and_leaves_what_is_held(trouble):
    broken = Unavailable(trouble=trouble, detail="fan")
    hold = share_hold(1, "GPU-a", 0, 4096, "ml101")
    (item,) = picture(device("a", unavailable=broken), leases=[lease(1, "ada", hold)], holds=[hold])
    assert shown(item) == ["own", "unavailable"]
    assert item.unavailable is not None
    assert item.unavailable.trouble is trouble
    assert item.unavailable.detail == ("" if trouble is Trouble.FOREIGN else "fan")


@pytest.mark.parametrize(("viewer", "named"), [(ADA, False), (ADMIN, True)])
def test_what_uses_a_device_without_a_lease_is_named_to_admins_only(viewer, named):
    foreign = {("lab", "GPU-a"): "jupyter-ben", ("tower", "*"): "ben-trains"}
    hosts = [
        inventory(device("a"), device("b", index=1), mig_device("m", 5, index=2)),
        inventory(mig_device("t", 5, 10), host_id="tower"),
    ]
    pool = Pool(sharing_policy(), hosts, now=T0, foreign=foreign)
    items = {item.device.uuid: item for item in draw(pool, [], viewer)}
    assert items["GPU-b"].unavailable is None
    assert items["GPU-m"].unavailable is None
    for uuid, name, parts in (("GPU-a", "jupyter-ben", 1), ("GPU-t", "ben-trains", 2)):
        told = [items[uuid].unavailable, *(part.unavailable for part in items[uuid].slices)]
        assert len(told) == parts + 1
        for each in told:
            assert each is not None
            assert each.trouble is Trouble.FOREIGN
            assert each.detail == (name if named else "")
    assert named or "ben" not in repr(items)


@pytest.mark.parametrize(
    ("changes", "policy", "host", "detail"),
    [
        ({"partitioned": None}, None, {}, PARTITIONING_UNKNOWN),
        ({}, Policy(rules=(DeviceRule(modes=frozenset({Mode.INSTANCE})),)), {}, NOT_HANDED_OUT),
        ({}, SHARES_ONLY, {"simulated": False}, SHARES_NOT_HELD),
        ({}, SHARES_ONLY, {"observed_at": after(-61)}, NOT_REPORTED),
    ],
)
def test_a_device_that_is_never_handed_out_says_why(changes, policy, host, detail):
    (item,) = picture(device("a", **changes), policy=policy, **host)
    assert shown(item) == ["unavailable"]
    assert item.slices[0].unavailable is not None
    assert item.slices[0].unavailable.detail == detail


def test_a_site_that_hands_out_no_instances_says_so_of_each():
    policy = Policy(rules=(DeviceRule(modes=frozenset({Mode.WHOLE})),))
    (item,) = picture(mig_device("m", 5), policy=policy)
    assert item.slices[0].unavailable is not None
    assert item.slices[0].unavailable.detail == NOT_HANDED_OUT


def test_a_real_device_is_free_as_a_whole_where_it_may_also_be_shared():
    (item,) = picture(device("a"), simulated=False)
    assert shown(item) == ["free"]
    assert item.slices[0].modes == (Mode.WHOLE,)


def test_a_held_device_that_no_host_reports_is_not_gone():
    hold = hold_of(1, "GPU-lost")
    first, second = picture(device("a"), leases=[lease(1, "ada", hold)], holds=[hold])
    assert first.device.uuid == "GPU-a"
    assert (second.device.uuid, second.device.memory_mib) == ("GPU-lost", None)
    assert second.unavailable is not None
    assert second.unavailable.detail == NOT_REPORTED
    assert shown(second) == ["own"]


def test_unknown_memory_stays_unknown():
    (item,) = picture(device("a", memory_mib=None), policy=Policy())
    assert item.slices[0].memory_mib is None


def test_the_order_is_by_host_and_index():
    items = picture(device("b", index=1), device("a", index=0), device("c", index=2))
    assert [item.device.uuid for item in items] == ["GPU-a", "GPU-b", "GPU-c"]


@given(st.lists(st.sampled_from(["ada", "ben", "cho"]), max_size=4), st.booleans())
def test_nobody_elses_name_is_ever_in_a_students_picture(users, whole):
    profile = WHOLE if whole else ML_SHARE
    holds, leases = [], []
    for number, user in enumerate(users):
        hold = (
            hold_of(number, f"GPU-{number}")
            if profile is WHOLE
            else share_hold(number, "GPU-0", number, 2048, "ml101")
        )
        holds.append(hold)
        leases.append(lease(number, user, hold))
    devices = [device(str(number)) for number in range(4)]
    for item in picture(*devices, leases=leases, holds=holds):
        for part in item.slices:
            assert part.lease is None or part.lease.key.user == "ada"
            assert (part.shown is Shown.OWN) == (part.lease is not None)
    assert sum(
        part.shown in (Shown.OWN, Shown.BUSY)
        for item in picture(*devices, leases=leases, holds=holds)
        for part in item.slices
    ) == len(users)
