"""Asking for a GPU: who gets what, and what a refusal leaves behind."""

from dataclasses import replace

import pytest

from gpuspawner.broker.broker import Broker
from gpuspawner.domain.leases import State
from gpuspawner.domain.placement import availability
from gpuspawner.domain.reasons import Code, Kind
from gpuspawner.ledger.store import Ledger
from tests.broker.looks import (
    actions,
    audit,
    everything,
    held,
    lease_of,
    refusal,
    state_of,
)
from tests.builders import (
    ANY_MIG,
    CPU_ONLY,
    ML_SHARE,
    NEVER_RAN,
    PAIR,
    SMALL_MIG,
    T0,
    VIS_SHARE,
    WANTED,
    WHOLE,
    after,
    claim,
    device,
    inventory,
    key,
    mig_device,
    share_hold,
)


@pytest.mark.proves("P3", "P6")
def test_a_refusal_is_a_lease_that_ended_at_once(broker: Broker) -> None:
    broker.observe(inventory(device("a")), T0)
    broker.request(claim("ada"), T0)
    why = refusal(broker, claim("ben", alternatives=(WHOLE, ML_SHARE, CPU_ONLY)))
    assert (why.code, why.kind) == (Code.ALL_IN_USE, Kind.CAPACITY)
    assert why.values == {
        "profile": "A whole GPU", "total": 1, "in_use": 1, "unavailable": 0,
        "alternatives": ["CPU only"],
    }  # fmt: skip
    with broker.ledger.read() as books:
        lease = books.last_of_server(key("ben"))
        assert books.living_of_server(key("ben")) is None
    assert lease is not None
    assert (lease.state, lease.reason, lease.ended_at) == (State.ENDED, why, T0)
    assert (lease.fence, lease.granted_at, lease.slices) == (None, None, ())
    asked, refused = audit(broker, lease)
    assert (asked["action"], asked["actor"], asked["reason"]) == ("request", "user:ben", None)
    assert (refused["action"], refused["actor"], refused["reason"]) == ("refuse", "hub", why)
    assert asked["detail"] == {"profile": "whole"}


@pytest.mark.parametrize("state", [State.WAITING, State.GRANTED, State.RUNNING, State.ENDING])
def test_a_server_with_a_living_lease_gets_no_second_one(broker: Broker, state: State) -> None:
    broker.observe(inventory(device("a"), device("b")), T0)
    if state is State.WAITING:
        for user in ("ben", "cho"):
            broker.request(claim(user), T0)
    lease = broker.request(claim("ada", server="lab1", may_wait=True), T0)
    if state in (State.RUNNING, State.ENDING):
        broker.run(lease, T0, T0)
    if state is State.ENDING:
        broker.want_end(lease.lease_id, WANTED, T0)
    before = everything(broker), actions(broker)
    why = refusal(broker, claim("ada", CPU_ONLY, "lab1"))
    assert (why.code, why.kind) == (Code.SERVER_HOLDS, Kind.CONFLICT)
    assert why.values == {"server": "lab1", "profile": "A whole GPU", "state": str(state)}
    assert (everything(broker), actions(broker)) == before


def test_servers_are_told_apart_by_hub_user_and_name(broker: Broker) -> None:
    broker.observe(inventory(*(device(str(n)) for n in range(4))), T0)
    keys = [key("ada"), key("ada", "x"), key("ben"), replace(key("ada"), hub_id="hub2")]
    for each in keys:
        broker.request(replace(claim("ada"), key=each), T0)
    assert len(held(broker)) == 4


def test_a_server_may_ask_again_after_its_end(broker: Broker) -> None:
    broker.observe(inventory(device("a")), T0)
    first = broker.request(claim("ada"), T0)
    broker.end(first.lease_id, WANTED, NEVER_RAN, after(1))
    second = broker.request(claim("ada"), after(2))
    assert second.lease_id > first.lease_id
    assert held(broker) == {"GPU-a": second.lease_id}


def test_without_any_host_nothing_is_promised(broker: Broker) -> None:
    why = refusal(broker, claim("ada"))
    assert (why.code, why.values) == (Code.INVENTORY_AWAY, {"since": None})
    waiting = broker.request(claim("ben", may_wait=True), T0)
    assert waiting.state is State.WAITING
    broker.observe(inventory(device("a")), after(1))
    assert state_of(broker, waiting) is State.GRANTED


def test_a_host_without_devices_fits_nothing(broker: Broker) -> None:
    broker.observe(inventory(), T0)
    why = refusal(broker, claim("ada"))
    assert (why.code, why.values["devices"]) == (Code.NOTHING_FITS, 0)


def test_a_claim_without_gpu_is_a_mistake_of_the_caller(broker: Broker) -> None:
    broker.observe(inventory(device("a")), T0)
    before = everything(broker), actions(broker)
    with pytest.raises(ValueError, match="'cpu' is without GPU"):
        broker.request(claim("ada", CPU_ONLY), T0)
    assert (everything(broker), actions(broker)) == before


def test_before_a_hub_published_whole_devices_are_handed_out_and_nothing_is_shared(
    ledger: Ledger,
) -> None:
    fresh = Broker(ledger, "hub")
    fresh.observe(inventory(device("a")), T0)
    assert refusal(fresh, claim("ada", ML_SHARE)).code is Code.NOTHING_FITS
    assert fresh.request(claim("ada"), T0).state is State.GRANTED


def test_four_people_get_four_devices_and_the_next_two_the_freed_ones(broker: Broker) -> None:
    broker.observe(inventory(*(device(name) for name in "abcd")), T0)
    leases = [broker.request(claim("ada", server=str(n)), T0) for n in range(4)]
    assert {lease.slices[0].uuid for lease in leases} == {"GPU-a", "GPU-b", "GPU-c", "GPU-d"}
    freed = {leases[number].slices[0].uuid for number in (0, 2)}
    for number in (0, 2):
        broker.end(leases[number].lease_id, WANTED, NEVER_RAN, after(1))
    late = [broker.request(claim(user), after(2)) for user in ("ben", "cho")]
    assert {lease.slices[0].uuid for lease in late} == freed
    assert len(set(held(broker).values())) == 4


def test_the_fifth_share_waits_whoever_holds_the_four(broker: Broker) -> None:
    """One person's several servers on one device are several shares (not one per owner)."""
    quarter = replace(ML_SHARE, memory_mib=3900)
    broker.observe(inventory(device("a")), T0)
    owners = [("ada", "one"), ("ada", "two"), ("ben", "one"), ("ben", "two")]
    leases = [broker.request(claim(user, quarter, server), T0) for user, server in owners]
    late = broker.request(claim("cho", quarter, may_wait=True), T0)
    assert late.state is State.WAITING
    with broker.ledger.read() as books:
        counted = availability(books.view(T0), quarter)
        ours = [lease for lease in books.of_user("hub", "ada") if lease.slices]
    assert (counted.in_use, counted.total, len(ours)) == (4, 4, 2)
    broker.end(leases[1].lease_id, WANTED, NEVER_RAN, after(1))
    assert [item.slice_id for item in lease_of(broker, late).slices] == ["GPU-a/share-1"]
    assert len(held(broker)) == 4


def test_all_modes_side_by_side_on_one_host(broker: Broker) -> None:
    lab = inventory(device("a"), device("b"), device("c"), device("d"), mig_device("m", 5, 10))
    broker.observe(lab, T0)
    whole = broker.request(claim("ada", PAIR), T0)
    mig = broker.request(claim("ada", SMALL_MIG, "mig"), T0)
    other = broker.request(claim("ben", ANY_MIG, "mig"), T0)
    first = broker.request(claim("ben", ML_SHARE), T0)
    stranger = broker.request(claim("cho", VIS_SHARE), T0)
    second = broker.request(claim("ada", ML_SHARE, "share"), T0)
    assert sorted(item.slice_id for item in whole.slices) == ["GPU-a", "GPU-b"]
    assert [mig.slices[0].uuid, other.slices[0].uuid] == ["MIG-m-0", "MIG-m-1"]
    assert [each.slices[0].slice_id for each in (first, second, stranger)] == [
        "GPU-c/share-0", "GPU-c/share-1", "GPU-d/share-0",
    ]  # fmt: skip
    assert refusal(broker, claim("cho", WHOLE, "w")).code is Code.ALL_IN_USE


def test_a_device_held_whole_is_not_handed_out_in_pieces_when_it_is_cut(broker: Broker) -> None:
    """Somebody partitions a device while its lease still lives: the lease goes first."""
    broker.observe(inventory(device("m")), T0)
    lease = broker.request(claim("ada"), T0)
    broker.observe(inventory(mig_device("m", 5, 5)), after(1))
    assert refusal(broker, claim("ben", SMALL_MIG)).code is Code.ALL_IN_USE
    broker.end(lease.lease_id, WANTED, NEVER_RAN, after(2))
    assert broker.request(claim("ben", SMALL_MIG), after(3)).slices[0].uuid == "MIG-m-0"


def test_shares_of_a_device_are_held_by_number(broker: Broker) -> None:
    broker.observe(inventory(device("a")), T0)
    lease = broker.request(claim("ada", ML_SHARE), T0)
    with broker.ledger.read() as books:
        assert books.holds() == [share_hold(lease.lease_id, "GPU-a", 0, 4096, "ml101")]
