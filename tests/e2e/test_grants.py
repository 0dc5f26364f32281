"""Whole sites on a real engine: who gets what, and who is told why not."""

import asyncio
from collections.abc import Callable

import pytest

from gpuspawner.domain.leases import State
from gpuspawner.domain.reasons import Code
from tests.e2e.lab import Lab

pytestmark = pytest.mark.engine

ASKED = {
    **{f"share{n}": "share" for n in range(4)},
    **{f"mig{n}": "mig-2g" for n in range(3)},
    "whole0": "whole",
}


@pytest.mark.proves("P1", "P4", "P6")
async def test_eight_students_at_the_same_moment_get_eight_slices_and_the_ninth_a_reason(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(groups={"ml101": [*ASKED, "ninth"]})
    for user in [*ASKED, "ninth"]:
        lab.hub.add_user(user)

    answers = await asyncio.gather(
        *(
            lab.hub.start_server_async(user, options={"profile": profile})
            for user, profile in ASKED.items()
        )
    )

    assert [answer.status for answer in answers] == [201] * 8
    by_user = {lease.key.user: lease for lease in lab.living()}
    assert by_user.keys() == ASKED.keys()
    for user, profile in ASKED.items():
        lease, container = by_user[user], lab.container(user)
        uuids = [item.uuid for item in lease.slices]
        assert lease.state is State.RUNNING
        assert lease.profile.name == profile
        (request,) = container["HostConfig"]["DeviceRequests"]
        assert (request["Driver"], request["Count"]) == ("nvidia", 0)
        assert request["DeviceIDs"] == uuids
        inside = lab.inside(container)
        assert inside["NVIDIA_VISIBLE_DEVICES"] == ",".join(uuids)
        assert inside["GPU_UUIDS"] == ",".join(uuids)
        assert inside["GPU_MODE"] == str(lease.slices[0].mode)
    # None overlaps: all units differ, and the shares are spread over both small cards.
    units = {item.slice_id for lease in by_user.values() for item in lease.slices}
    assert len(units) == 8
    cards = sorted(by_user[f"share{n}"].slices[0].device_uuid for n in range(4))
    assert len(set(cards)) == 2
    assert cards[0] == cards[1]
    assert cards[2] == cards[3]
    assert by_user["share0"].slices[0].memory_mib == 5120
    lab.check()

    refused = lab.hub.start_server("ninth", options={"profile": "share"})

    assert refused.status == 429
    assert refused.body["message"] == (
        "All 4 places of “Small share” are in use. Free right now: CPU only. "
        "Or try again when somebody stops a server."
    )
    assert {k.lower(): v for k, v in refused.headers.items()}["retry-after"] == "60"
    lease = lab.last("ninth")
    assert lease.state is State.ENDED
    assert lease.reason is not None
    assert lease.reason.code is Code.ALL_IN_USE
    assert lease.reason.values["total"] == 4
    assert lab.containers("ninth") == []


@pytest.mark.proves("P4")
async def test_four_whole_gpus_are_used_again_after_a_change(
    make_lab: Callable[..., Lab],
) -> None:
    """Four users, four explicit ids; two leave, two come, and get what was freed (case 05)."""
    profiles = [{"name": "whole", "title": "Whole A100", "mode": "whole"}]
    lab = make_lab(preset="four-a100", profiles=profiles, devices=[])
    users = ["u1", "u2", "u3", "u4", "u5", "u6"]
    for user in users:
        lab.hub.add_user(user)

    first = await asyncio.gather(
        *(lab.hub.start_server_async(user, options={"profile": "whole"}) for user in users[:4])
    )
    assert [answer.status for answer in first] == [201] * 4
    had = {lease.key.user: lease.slices[0].uuid for lease in lab.living()}
    assert set(had.values()) == {device.uuid for device in lab.inventory.devices}
    lab.stop("u1")
    lab.stop("u3")
    second = await asyncio.gather(
        *(lab.hub.start_server_async(user, options={"profile": "whole"}) for user in users[4:])
    )

    assert [answer.status for answer in second] == [201] * 2
    now = {lease.key.user: lease.slices[0].uuid for lease in lab.living()}
    assert {now["u5"], now["u6"]} == {had["u1"], had["u3"]}
    for user in ("u2", "u4", "u5", "u6"):
        (request,) = lab.container(user)["HostConfig"]["DeviceRequests"]
        assert request["DeviceIDs"] == [now[user]]
        assert request["Count"] == 0


FORBIDDEN = [
    {"profile": "cpu", "devices": ["GPU-1"]},
    {"gpu_ids": "all"},
    {"profile": "cpu", "mounts": [{"source": "/", "target": "/host"}]},
    {"profile": "cpu", "privileged": True},
    {"priority": 1},
    {"environment": {"NVIDIA_VISIBLE_DEVICES": "all"}},
    {"course": "vis202"},
    {"image": "an-image-off-the-list"},
    {"profile": "staff-only-by-guess"},
    {"profile": ["whole"]},
    {"profile": None},
    {"profile": {"name": "whole"}},
    {"image": 7},
]


def test_options_by_api_are_judged_like_any_other(make_lab: Callable[..., Lab]) -> None:
    """Every extra key, wrong type and unknown value is a 400 that names the key (case 26)."""
    lab = make_lab(profiles=[*_with_group()], groups={"staff": ["cho"]})
    lab.hub.add_user("ada")

    for options in FORBIDDEN:
        answer = lab.hub.start_server("ada", options=options)
        assert answer.status == 400, (options, answer.body)
        bad = next(key for key in options if options[key] not in ("cpu", "whole"))
        assert f"“{bad}”" in answer.body["message"], answer.body
    # A profile of a group that she is not in: understood, and not allowed.
    answer = lab.hub.start_server("ada", options={"profile": "staff"})
    assert answer.status == 403
    assert "staff" in answer.body["message"]

    assert lab.containers() == []
    assert lab.living() == []
    # The options of the refused request were saved by the hub; they are judged again.
    again = lab.hub.api("POST", "/users/ada/server")
    assert again.status == 403
    # Explicitly empty: the default, which is the smallest grant.
    assert lab.hub.start_server("ada", options={}).status == 201
    assert lab.container("ada")["HostConfig"]["DeviceRequests"] is None


def _with_group() -> list[dict[str, object]]:
    return [
        {"name": "cpu", "title": "CPU only", "default": True},
        {"name": "whole", "title": "Whole H100", "mode": "whole", "models": ["H100"]},
        {"name": "staff", "title": "For staff", "mode": "whole", "groups": ["staff"]},
    ]


@pytest.mark.proves("P4")
def test_an_image_that_asks_for_all_gpus_sees_its_lease_only(
    make_lab: Callable[..., Lab], images: object
) -> None:
    """Our explicit value wins over the image's own, with and without a GPU (case 29)."""
    lab = make_lab(image=images.sees_all_gpus)  # type: ignore[attr-defined]
    for user, profile, expected in (("ada", "cpu", "void"), ("ben", "whole", None)):
        lab.hub.add_user(user)
        lab.start(user, profile=profile)
        container = lab.container(user)
        inside = lab.inside(container)
        wanted = expected or lab.last(user).slices[0].uuid
        assert inside["NVIDIA_VISIBLE_DEVICES"] == wanted
        assert f"NVIDIA_VISIBLE_DEVICES={wanted}" in container["Config"]["Env"]
        assert "NVIDIA_VISIBLE_DEVICES=all" not in container["Config"]["Env"]


def test_groups_are_read_when_the_decision_is_made(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(groups={"ml101": ["ben"]})
    lab.hub.add_user("ada")

    before = lab.hub.start_server("ada", options={"profile": "share"})
    lab.hub.api("POST", "/groups/ml101/users", json={"users": ["ada"]})
    after = lab.hub.start_server("ada", options={"profile": "share"})

    assert before.status == 403
    assert "ml101" in before.body["message"]
    assert after.status == 201
    assert lab.last("ada").slices[0].mode == "time-sliced"
