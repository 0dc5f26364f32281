"""What an engine's list and an inspected container say, by whatever way it was given devices."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.domain.leases import Lease, State
from gpuspawner.domain.reconciliation import GrantCopy
from gpuspawner.engines.docker import labels, listing
from tests.builders import T0, WHOLE, hold_of, key, share_hold
from tests.strategies import profiles, slices

ALL = None
A, B = "GPU-aaaa", "GPU-bbbb"
MIG = "MIG-cccc"
GPU = [["gpu"]]
VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def inspected(*env: str, labelled: Any = None, **host: Any) -> dict[str, Any]:
    """Return what the engine says of a container, with nulls where it says null."""
    given_ = {"DeviceRequests": None, "Devices": None, "Runtime": "runc", "Privileged": False}
    return {"Config": {"Labels": labelled, "Env": list(env) or None}, "HostConfig": given_ | host}


def asked(*ids: str, driver: str = "nvidia", count: int = 0, capabilities: Any = GPU) -> Any:
    return [{
        "Driver": driver, "Count": count, "DeviceIDs": list(ids) or None,
        "Capabilities": capabilities, "Options": {},
    }]  # fmt: skip


REQUESTS = [
    (None, ()),
    ([], ()),
    (asked(A), (A,)),
    (asked(A, B), (A, B)),
    (asked("0", MIG, "1:0"), ("0", "1:0", MIG)),
    (asked(count=1), ("0",)),
    (asked(count=3), ("0", "1", "2")),
    (asked(count=-1), ALL),  # --gpus all
    (asked(), ()),
    (asked(A, driver=""), (A,)),
    (asked(driver="", count=-1), ALL),
    (asked(A, driver="", capabilities=[["compute", "utility"]]), (A,)),
    (asked(driver="", count=-1, capabilities=[["nvidia"]]), ALL),
    (asked(A, driver="", capabilities=None), ()),
    (asked(A, driver="", capabilities=[["tpu"]]), ()),
    (asked(A, driver="other"), ()),
    (asked("all"), ALL),
    (asked("nvidia.com/gpu=0", driver="cdi", capabilities=None), ("0",)),
    (asked(f"nvidia.com/gpu={A}", "nvidia.com/gpu=1:0", driver="cdi"), ("1:0", A)),
    (asked("nvidia.com/gpu=all", driver="cdi"), ALL),
    (asked("amd.com/gpu=0", driver="cdi"), ("0",)),
    (asked("vendor.com/net=eth0", driver="cdi"), ()),
    (asked(A) + asked("1", driver="cdi", capabilities=None), (A,)),
    (asked(A) + asked(count=-1), ALL),
]  # fmt: skip


@pytest.mark.proves("P4")
@pytest.mark.parametrize(("requests", "expected"), REQUESTS)
def test_by_a_request(requests: Any, expected: tuple[str, ...] | None) -> None:
    given_ = inspected(f"{VISIBLE}=all", DeviceRequests=requests)
    assert listing.devices_of(given_, "runc") == expected


VARIABLES = [
    ([], ()),
    (["PATH=/bin"], ()),
    ([f"{VISIBLE}="], ()),
    ([f"{VISIBLE}=void"], ()),
    ([f"{VISIBLE}=none"], ()),
    ([f"{VISIBLE}=all"], ALL),
    ([f"{VISIBLE}=0"], ("0",)),
    ([f"{VISIBLE}=0,{A}"], ("0", A)),
    ([f"{VISIBLE}= {MIG} "], (MIG,)),
    ([f"{VISIBLE}=1:0"], ("1:0",)),
    ([f"{VISIBLE}=nvidia.com/gpu=0"], ("0",)),
    ([f"{VISIBLE}=0,all"], ALL),
    ([f"{VISIBLE}=all", f"{VISIBLE}=void"], ()),  # the last counts
    ([f"X{VISIBLE}=all"], ()),
    (["CUDA_VERSION=9.0"], ALL),  # an image from before the variable
    (["CUDA_VERSION=9.0", f"{VISIBLE}=void"], ()),
    (["CUDA_VERSION=12.4", "NVIDIA_REQUIRE_CUDA=cuda>=12.4"], ()),
]


@pytest.mark.parametrize(("env", "expected"), VARIABLES)
@pytest.mark.parametrize(
    ("runtime", "default"),
    [("nvidia", "runc"), ("", "nvidia"), (None, "nvidia"), ("nvidia-cdi", "runc")],
)
def test_by_the_variable_that_nvidias_runtime_reads(
    env: list[str], expected: tuple[str, ...] | None, runtime: str | None, default: str
) -> None:
    assert listing.devices_of(inspected(*env, Runtime=runtime), default) == expected


@pytest.mark.parametrize(
    ("runtime", "default"), [("runc", "nvidia"), ("", "runc"), ("", "crun"), (None, "runc")]
)
def test_no_other_runtime_reads_the_variable(runtime: str | None, default: str) -> None:
    assert listing.devices_of(inspected(f"{VISIBLE}=all", Runtime=runtime), default) == ()


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["/dev/nvidia0"], ("0",)),
        (["/dev/nvidia0", "/dev/nvidia11", "/dev/nvidiactl", "/dev/nvidia-uvm"], ("0", "11")),
        (["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-caps/nvidia-cap1"], ()),
        (["/dev/fuse"], ()),
        (["/dev"], ALL),
        (["/dev/"], ALL),
        (["/dev/nvidia²"], ()),
    ],
)
def test_by_a_device_node(paths: list[str], expected: tuple[str, ...] | None) -> None:
    given_ = inspected(
        Devices=[{"PathOnHost": each, "PathInContainer": each} for each in paths]
    )  # fmt: skip
    assert listing.devices_of(given_, "runc") == expected


def test_by_all_ways_together() -> None:
    ways = inspected(
        f"{VISIBLE}=1", Runtime="nvidia", DeviceRequests=asked(A),
        Devices=[{"PathOnHost": "/dev/nvidia3"}],
    )  # fmt: skip
    assert listing.devices_of(ways, "runc") == ("1", "3", A)


def test_a_privileged_one_counts_by_what_it_was_given() -> None:
    """It could use all; monitors are made so."""
    assert listing.devices_of(inspected(Privileged=True), "runc") == ()
    asks = inspected(Privileged=True, DeviceRequests=asked(count=-1))
    assert listing.devices_of(asks, "runc") is ALL


@pytest.mark.parametrize(
    ("value", "expected"), [("true", ()), ("false", ALL), ("", ALL), ("True", ALL)]
)
def test_the_operator_may_say_that_one_is_not_counted(
    value: str, expected: tuple[str, ...] | None
) -> None:
    monitor = inspected(
        DeviceRequests=asked(count=-1), labelled={"org.gpuspawner.ignore": value}
    )  # fmt: skip
    assert listing.devices_of(monitor, "runc") == expected


# The list.

LEASE = Lease(
    lease_id=5, key=key("ada", "two"), state=State.GRANTED, profile=WHOLE, image="base:1",
    engine="docker", requested_at=T0, granted_at=T0, fence=1788249601,
    slices=(hold_of(5, A).slice, hold_of(5, B).slice),
)  # fmt: skip


def summary(labelled: dict[str, str] | None, **values: Any) -> dict[str, Any]:
    return {
        "Id": "c" * 64, "Names": ["/nb"], "State": "running", "Created": int(T0.timestamp()),
        "Labels": labelled, **values,
    }  # fmt: skip


def test_one_of_ours_says_itself_what_it_has() -> None:
    ours = summary(labels.labels_of(LEASE.key, LEASE))
    assert listing.has_grant(ours)
    found = listing.found(ours, ("whatever",))
    assert (found.run_id, found.name, found.runs, found.made_at) == ("c" * 64, "nb", True, T0)
    assert (found.key, found.fence) == (LEASE.key, LEASE.fence)
    assert found.devices == (A, B)
    assert found.grant == GrantCopy(profile=WHOLE, slices=LEASE.slices, image="base:1")
    assert found.attached


def test_a_share_is_named_by_its_device() -> None:
    lease = replace(LEASE, slices=(share_hold(5, A, 3, 100, "ml101").slice,))
    ours = summary(labels.labels_of(LEASE.key, lease))
    assert listing.found(ours, ()).devices == (A,)


@pytest.mark.parametrize(
    "labelled", [None, {}, {"site": "vis202"}, labels.labels_of(key("ada"), None)]
)
def test_one_without_a_grant_has_what_it_was_given(labelled: dict[str, str] | None) -> None:
    assert not listing.has_grant(summary(labelled))
    found = listing.found(summary(labelled), ("0",))
    assert (found.devices, found.fence, found.grant) == (("0",), None, None)
    assert found.key == (key("ada") if labelled and labels.HUB in labelled else None)


@pytest.mark.parametrize(
    ("state", "runs"),
    [
        ("running", True), ("paused", True), ("restarting", True), ("created", False),
        ("exited", False), ("dead", False), ("removing", False),
    ],
)  # fmt: skip
def test_what_runs(state: str, runs: bool) -> None:
    assert listing.found(summary(None, State=state), ()).runs is runs


@pytest.mark.parametrize("names", [None, []])
def test_one_that_has_lost_its_name(names: Any) -> None:
    assert listing.found(summary(None, Names=names), ()).name == "c" * 12


@given(profiles(), st.lists(slices(), min_size=1, max_size=3), st.none() | st.text(max_size=9))
def test_a_grant_reads_back_from_its_label(profile: Any, held: Any, image: str | None) -> None:
    lease = replace(LEASE, profile=profile, slices=tuple(held), image=image)
    copy = labels.grant_of(labels.labels_of(LEASE.key, lease))
    assert copy == GrantCopy(profile=profile, slices=tuple(held), image=image)


GOOD = labels.labels_of(LEASE.key, LEASE)[labels.GRANT]


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "null", "[]", "3", '"x"', "[" * 100_000, GOOD[:-1],
        json.dumps({**json.loads(GOOD), "slices": []}),
        json.dumps({**json.loads(GOOD), "slices": None}),
        json.dumps({**json.loads(GOOD), "slices": [{}]}),
        json.dumps({**json.loads(GOOD), "profile": {"mode": "warp"}}),
        json.dumps({"profile": json.loads(GOOD)["profile"]}),
    ],
)  # fmt: skip
def test_a_label_that_is_no_grant_is_none(text: str) -> None:
    """Of an older or a newer release, or somebody's own: it is shown then, not entered."""
    assert labels.grant_of({labels.GRANT: text}) is None
    mine = labels.labels_of(LEASE.key, LEASE) | {labels.GRANT: text}
    assert listing.found(summary(mine), ()).fence == LEASE.fence


SITES = {"site": "vis202"}


def test_a_grant_of_an_image_is_left_out_whole() -> None:
    of_image = labels.of_new(LEASE.key, LEASE)
    given = SITES | of_image | labels.of_new(LEASE.key, None)
    assert given[labels.MADE] != of_image[labels.MADE]
    own = labels.without_images(given, of_image)
    assert own == SITES | labels.labels_of(LEASE.key, None) | {labels.MADE: given[labels.MADE]}


@pytest.mark.parametrize("lease", [LEASE, None])
def test_a_container_of_an_image_that_the_hub_did_not_make_is_nobodys(lease: Lease | None) -> None:
    of_image = labels.of_new(LEASE.key, lease)
    assert labels.without_images(SITES | of_image, of_image) == SITES


@pytest.mark.parametrize("of_image", [{}, SITES, labels.of_new(LEASE.key, LEASE)])
def test_its_own_labels_stay_whatever_the_image_says(of_image: dict[str, str]) -> None:
    mine = SITES | labels.of_new(LEASE.key, replace(LEASE, fence=(LEASE.fence or 0) + 1))
    assert labels.without_images(mine, of_image) == mine
