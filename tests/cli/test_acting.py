"""``cordon`` and ``uncordon``: what they say, and that placement obeys."""

import getpass
import json
from collections.abc import Callable

import pytest

from gpuspawner.broker.broker import Broker
from gpuspawner.domain.reasons import RefusedError
from tests.builders import ML_SHARE, SMALL_MIG, T0, WHOLE, after, claim, device, inventory
from tests.cli.conftest import Ran

Run = Callable[..., Ran]


def test_a_cordoned_device_is_not_handed_out_until_it_is_uncordoned(
    run: Run, broker: Broker
) -> None:
    present = broker.request(claim("cho"), T0)
    (slice_,) = present.slices
    other = {"GPU-aa11": "GPU-aa22", "GPU-aa22": "GPU-aa11"}[slice_.uuid]

    ran = run("cordon", other, "--note", "a new fan comes")

    assert ran == Ran(0, f"{other} is cordoned; 0 lease(s) on it go on until they end.\n", "")
    with pytest.raises(RefusedError) as refused:
        broker.request(claim("ada"), after(1))
    assert refused.value.reason.values["unavailable"] == 2  # the sick one, and this one
    assert "unavailable: cordoned a new fan comes" in run("status").out
    (found,) = [
        device["unavailable"]
        for device in json.loads(run("status", "--json").out)["hosts"][0]["devices"]
        if device["uuid"] == other
    ]
    assert found == {"trouble": "cordoned", "detail": "a new fan comes"}

    assert run("uncordon", other) == Ran(0, f"{other} is handed out again.\n", "")
    assert broker.request(claim("ada"), after(2)).slices[0].uuid == other


def test_what_is_held_goes_on(run: Run, broker: Broker) -> None:
    lease = broker.request(claim("ada"), T0)
    uuid = lease.slices[0].uuid
    assert (
        run("cordon", uuid).out == f"{uuid} is cordoned; 1 lease(s) on it go on until they end.\n"
    )
    with broker.ledger.read() as books:
        assert books.lease(lease.lease_id) == lease


def test_one_instance_is_cordoned_and_its_neighbour_is_not(run: Run, broker: Broker) -> None:
    assert run("cordon", "MIG-cc44-0").status == 0
    with pytest.raises(RefusedError):
        broker.request(claim("ada", SMALL_MIG), T0)
    slices = json.loads(run("status", "--json").out)["hosts"][0]["devices"][3]["slices"]
    assert [(each["unit"], each["unavailable"] is not None) for each in slices] == [
        ("MIG-cc44-0", True), ("MIG-cc44-1", False),
    ]  # fmt: skip
    lines = run("status").out.splitlines()
    assert "unavailable: cordoned" in lines[-2]
    assert lines[-1].split()[-1] == "free"
    run("uncordon", "MIG-cc44-0")
    assert broker.request(claim("ada", SMALL_MIG), T0).slices[0].uuid == "MIG-cc44-0"


def test_a_whole_partitioned_device_takes_its_instances_along(run: Run, broker: Broker) -> None:
    run("cordon", "GPU-cc44")
    with pytest.raises(RefusedError):
        broker.request(claim("ada", SMALL_MIG), T0)


def test_a_beginning_is_enough_if_it_is_one(run: Run, broker: Broker) -> None:
    assert run("cordon", "GPU-b").out.startswith("GPU-bb33 is cordoned")
    assert run("uncordon", "GPU").out.startswith("GPU-bb33 is handed out")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("GPU-aa", "2 UUIDs in the pool begin with 'GPU-aa'"),
        ("", "6 UUIDs in the pool begin with ''"),
        ("GPU-zz", "no UUID in the pool begin with 'GPU-zz'"),
        ("gpu-bb33", "no UUID in the pool begin with 'gpu-bb33'"),
    ],
)
def test_a_beginning_that_is_none_or_several_changes_nothing(
    run: Run, broker: Broker, text: str, said: str
) -> None:
    ran = run("cordon", text)
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.startswith(f"gpuspawner cordon: {said}")
    for uuid in ("GPU-aa11", "GPU-aa22", "GPU-bb33", "GPU-cc44", "MIG-cc44-0", "MIG-cc44-1"):
        assert f"\n  {uuid}" in ran.err
    with broker.ledger.read() as books:
        assert books.cordons() == {}


def test_a_whole_uuid_counts_though_another_begins_with_it(run: Run, broker: Broker) -> None:
    broker.observe(inventory(device("aa"), device("aab", index=1), host_id="tower"), T0)
    assert run("cordon", "GPU-aa").out.startswith("GPU-aa is cordoned")


def test_only_what_is_cordoned_is_uncordoned(run: Run, broker: Broker) -> None:
    ran = run("uncordon", "GPU-aa11")
    assert ran == Ran(
        1, "",
        "gpuspawner uncordon: no UUID cordoned begin with 'GPU-aa11'; cordoned are:\n  (none)\n",
    )  # fmt: skip


def test_a_device_that_has_gone_can_be_uncordoned(run: Run, broker: Broker) -> None:
    """It was taken out for repair while it was cordoned."""
    run("cordon", "GPU-bb33")
    broker.observe(inventory(device("aa11")), after(1))
    assert run("uncordon", "GPU-bb33").status == 0


def test_a_second_cordon_changes_the_note(run: Run, broker: Broker) -> None:
    run("cordon", "GPU-bb33", "--note", "one")
    assert run("cordon", "GPU-bb33", "--note", "two").status == 0
    with broker.ledger.read() as books:
        assert books.cordons() == {"GPU-bb33": "two"}


def test_the_audit_says_who(run: Run, broker: Broker) -> None:
    run("cordon", "GPU-bb33", "--note", "fan")
    run("uncordon", "GPU-bb33")
    with broker.ledger.read() as books:
        records = [(x["action"], x["target"], x["actor"], x["detail"]) for x in books.audit()]
    who = f"admin:{getpass.getuser()}"
    assert records[-2:] == [
        ("cordon", "GPU-bb33", who, {"note": "fan"}), ("uncordon", "GPU-bb33", who, None),
    ]  # fmt: skip


def test_a_cordon_cannot_be_granted_around_by_shares(run: Run, broker: Broker) -> None:
    for uuid in ("GPU-aa11", "GPU-aa22"):
        run("cordon", uuid)
    for profile in (ML_SHARE, WHOLE):
        with pytest.raises(RefusedError):
            broker.request(claim("ada", profile), T0)
