"""Waiting and settling: in order, when something came free, and never on a guess."""

from dataclasses import replace

import pytest

from gpuspawner.broker.broker import Broker
from gpuspawner.domain.devices import Trouble, Unavailable
from gpuspawner.domain.leases import Lease, State
from gpuspawner.domain.policy import Policy
from gpuspawner.domain.reasons import Code
from tests.broker.looks import actions, audit, held, lease_of, refusal, state_of
from tests.builders import (
    EXITED,
    ML_SHARE,
    PAIR,
    SMALL_MIG,
    T0,
    VIS_SHARE,
    WANTED,
    after,
    claim,
    device,
    inventory,
    mig_device,
    sharing_policy,
)


@pytest.fixture
def lab(broker: Broker) -> Broker:
    """A broker with one GPU, held by ada, for whom ben and cho wait."""
    broker.observe(inventory(device("a")), T0)
    for number, user in enumerate(("ada", "ben", "cho")):
        broker.request(claim(user, may_wait=True), after(number))
    return broker


def states(broker: Broker) -> dict[str, State]:
    with broker.ledger.read() as books:
        return {lease.key.user: lease.state for lease in books.living()}


def of(broker: Broker, user: str) -> Lease:
    with broker.ledger.read() as books:
        return books.of_user("hub", user)[0]


def end(broker: Broker, user: str, seconds: int) -> None:
    broker.end(of(broker, user).lease_id, WANTED, EXITED, after(seconds))


def test_waiting_leases_are_granted_in_their_order_as_others_end(lab: Broker) -> None:
    assert states(lab) == {
        "ada": State.GRANTED, "ben": State.WAITING, "cho": State.WAITING,
    }  # fmt: skip
    end(lab, "ada", 10)
    assert states(lab) == {"ben": State.GRANTED, "cho": State.WAITING}
    assert of(lab, "ben").granted_at == after(10)
    end(lab, "ben", 20)
    assert states(lab) == {"cho": State.GRANTED}


def test_who_asks_later_does_not_overtake_who_waits_for_the_same(lab: Broker) -> None:
    lab.cordon("GPU-a", "fan", "cho", after(5))
    end(lab, "ada", 10)
    assert states(lab) == {"ben": State.WAITING, "cho": State.WAITING}
    late = lab.request(claim("ada", may_wait=True), after(11))
    assert late.state is State.WAITING
    assert lab.uncordon("GPU-a", "cho", after(12))
    assert states(lab)["ben"] is State.GRANTED
    assert state_of(lab, late) is State.WAITING


def test_who_may_not_wait_does_not_overtake_either(lab: Broker) -> None:
    lab.cordon("GPU-a", "fan", "cho", after(5))
    end(lab, "ada", 10)
    why = refusal(lab, claim("ada"))
    assert (why.code, why.values["unavailable"], why.values["in_use"]) == (Code.ALL_IN_USE, 1, 0)


@pytest.mark.proves("P2", "R2")
def test_asking_for_an_end_gives_nothing_away(lab: Broker) -> None:
    lab.want_end(of(lab, "ada").lease_id, WANTED, after(5))
    lab.settle(after(6))
    assert states(lab)["ben"] is State.WAITING
    end(lab, "ada", 7)
    assert states(lab)["ben"] is State.GRANTED


def test_who_gives_up_leaves_the_place_to_the_next(lab: Broker) -> None:
    lab.want_end(of(lab, "ben").lease_id, WANTED, after(5))
    end(lab, "ada", 10)
    assert states(lab) == {"cho": State.GRANTED}


def test_a_new_device_is_given_to_the_first(lab: Broker) -> None:
    lab.observe(inventory(device("a"), device("b")), after(5))
    assert of(lab, "ben").slices[0].uuid == "GPU-b"
    assert states(lab)["cho"] is State.WAITING


def test_a_new_policy_is_settled_by(broker: Broker) -> None:
    broker.publish(Policy(), "hub", T0)
    broker.observe(inventory(device("a")), T0)
    waiting = broker.request(claim("ada", ML_SHARE, may_wait=True), T0)
    assert waiting.state is State.WAITING
    broker.publish(sharing_policy(), "hub", after(1))
    assert state_of(broker, waiting) is State.GRANTED


def test_an_equal_policy_is_not_published_again(broker: Broker) -> None:
    before = actions(broker)
    broker.publish(sharing_policy(), "hub", after(9))
    assert actions(broker) == before == ["publish"]


@pytest.mark.proves("P2", "P5")
def test_unknown_is_not_gone(lab: Broker) -> None:
    ada = of(lab, "ada")
    lab.observe(inventory(trouble="no driver"), after(60))
    assert held(lab) == {"GPU-a": ada.lease_id}
    assert state_of(lab, ada) is State.GRANTED
    lab.observe(inventory(device("a")), after(120))
    assert held(lab) == {"GPU-a": ada.lease_id}
    assert states(lab)["ben"] is State.WAITING
    end(lab, "ada", 130)
    assert states(lab)["ben"] is State.GRANTED


def test_a_lease_on_a_vanished_device_can_be_ended_like_any_other(lab: Broker) -> None:
    lab.observe(inventory(device("b")), after(60))
    assert of(lab, "ben").slices[0].uuid == "GPU-b"
    end(lab, "ada", 70)
    assert states(lab) == {"ben": State.GRANTED, "cho": State.WAITING}
    assert set(held(lab)) == {"GPU-b"}


def test_a_sick_device_keeps_its_lease_and_is_given_to_nobody(lab: Broker) -> None:
    sick = Unavailable(trouble=Trouble.SICK, detail="XID 79")
    lab.observe(inventory(device("a", unavailable=sick)), after(60))
    assert states(lab)["ada"] is State.GRANTED
    end(lab, "ada", 70)
    assert states(lab) == {"ben": State.WAITING, "cho": State.WAITING}


def test_shares_come_free_for_the_group_that_waits(broker: Broker) -> None:
    broker.observe(inventory(device("a")), T0)
    first = [broker.request(claim("ada", ML_SHARE, str(n)), T0) for n in range(2)]
    other = broker.request(claim("ben", VIS_SHARE, may_wait=True), T0)
    broker.end(first[0].lease_id, WANTED, EXITED, after(1))
    assert state_of(broker, other) is State.WAITING
    broker.end(first[1].lease_id, WANTED, EXITED, after(2))
    assert [item.slice_id for item in lease_of(broker, other).slices] == ["GPU-a/share-0"]


def test_a_pair_waits_for_both_and_holds_neither_meanwhile(broker: Broker) -> None:
    broker.observe(inventory(device("a"), device("b")), T0)
    ada, ben = (broker.request(claim(user), T0) for user in ("ada", "ben"))
    pair = broker.request(claim("cho", PAIR, may_wait=True), T0)
    broker.end(ada.lease_id, WANTED, EXITED, after(1))
    assert state_of(broker, pair) is State.WAITING
    assert set(held(broker).values()) == {ben.lease_id}
    broker.end(ben.lease_id, WANTED, EXITED, after(2))
    assert {item.slice_id for item in lease_of(broker, pair).slices} == {"GPU-a", "GPU-b"}


def test_a_cordoned_instance_is_passed_over_and_its_neighbour_is_not(broker: Broker) -> None:
    broker.observe(inventory(mig_device("m", 5, 5)), T0)
    broker.cordon("MIG-m-0", "ECC", "cho", T0)
    assert broker.request(claim("ada", SMALL_MIG), T0).slices[0].uuid == "MIG-m-1"
    why = refusal(broker, claim("ben", SMALL_MIG))
    assert (why.values["total"], why.values["in_use"], why.values["unavailable"]) == (2, 1, 1)
    assert broker.uncordon("MIG-m-0", "cho", after(1))
    assert broker.request(claim("ben", SMALL_MIG), after(2)).slices[0].uuid == "MIG-m-0"


def test_a_cordon_leaves_present_leases_alone_and_is_on_record(lab: Broker) -> None:
    lab.cordon("GPU-a", "fan", "cho", after(5))
    assert states(lab)["ada"] is State.GRANTED
    lab.cordon("GPU-a", "fan and dust", "ben", after(6))
    with lab.ledger.read() as books:
        assert books.cordons() == {"GPU-a": "fan and dust"}
    assert lab.uncordon("GPU-a", "cho", after(7))
    assert not lab.uncordon("GPU-a", "cho", after(8))
    noted = [
        (record["action"], record["actor"], record["target"], record["detail"])
        for record in audit(lab)
        if "cordon" in record["action"]
    ]
    assert noted == [
        ("cordon", "cho", "GPU-a", {"note": "fan"}),
        ("cordon", "ben", "GPU-a", {"note": "fan and dust"}),
        ("uncordon", "cho", "GPU-a", None),
    ]


def test_settling_with_nobody_waiting_writes_nothing(broker: Broker) -> None:
    broker.observe(inventory(device("a")), T0)
    before = actions(broker)
    broker.settle(after(1))
    assert actions(broker) == before


def test_two_hosts_keep_their_own_observations(broker: Broker) -> None:
    broker.observe(inventory(device("a")), T0)
    broker.observe(inventory(device("b"), host_id="tower"), after(1))
    seen = inventory(device("a", index=3), observed_at=after(2))
    broker.observe(seen, after(2))
    with broker.ledger.read() as books:
        assert books.hosts() == (seen, inventory(device("b"), host_id="tower"))
    assert replace(seen, observed_at=T0) != inventory(device("a"))
