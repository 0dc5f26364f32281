"""Whatever is written is read back equal, on both databases."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from sqlalchemy.exc import StatementError

from gpuspawner.domain.devices import HostInventory, Mode
from gpuspawner.domain.leases import Claim, ServerKey, Source, State
from gpuspawner.domain.policy import Policy
from gpuspawner.domain.profiles import Profile
from gpuspawner.domain.reasons import Code, Reason
from gpuspawner.domain.slices import Hold, Slice, slice_from_dict, slice_to_dict
from gpuspawner.ledger.encoding import (
    decode_inventory,
    decode_profile,
    decode_reason,
    encode_inventory,
    encode_profile,
    encode_reason,
)
from gpuspawner.ledger.store import Ledger
from tests import strategies
from tests.builders import T0, WHOLE, claim, hold_of

# One database serves all examples: each writes what it reads.
shared = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=40,
)


@given(strategies.profiles())
def test_profiles(profile: Profile) -> None:
    assert decode_profile(encode_profile(profile)) == profile


@given(strategies.profiles(), strategies.profiles())
def test_equal_texts_are_equal_profiles(one: Profile, other: Profile) -> None:
    assert (encode_profile(one) == encode_profile(other)) == (one == other)


@given(strategies.reasons())
def test_reasons(why: Reason) -> None:
    assert decode_reason(encode_reason(why)) == why


def test_no_reason_stays_none() -> None:
    assert decode_reason(encode_reason(None)) is None


@given(strategies.slices())
def test_slices(item: Slice) -> None:
    assert slice_from_dict(slice_to_dict(item)) == item


@given(strategies.full_inventories())
def test_inventories(seen: HostInventory) -> None:
    text = encode_inventory(seen)
    assert decode_inventory(seen.host_id, seen.observed_at, text) == seen


@shared
@given(seen=strategies.full_inventories())
def test_hosts_in_the_database(ledger: Ledger, seen: HostInventory) -> None:
    with ledger.write() as books:
        books.save_host(seen)
    with ledger.read() as books:
        assert books.hosts() == (seen,)


@shared
@given(policy=strategies.policies(), profile=strategies.profiles())
def test_policies_in_the_database(ledger: Ledger, policy: Policy, profile: Profile) -> None:
    policy = Policy(profiles=(profile,), rules=policy.rules, placement=policy.placement)
    with ledger.write() as books:
        books.save_policy(policy, "hub", T0)
        assert not books.save_policy(policy, "hub", T0)
    with ledger.read() as books:
        assert books.policy() == policy


def test_before_a_hub_published_there_is_no_policy_and_no_host(ledger: Ledger) -> None:
    with ledger.read() as books:
        assert books.policy() is None
        assert books.hosts() == ()


@shared
@given(profile=strategies.profiles(), why=strategies.reasons(), at=strategies.times)
def test_leases_in_the_database(
    ledger: Ledger, profile: Profile, why: Reason, at: datetime
) -> None:
    key = ServerKey(hub_id="hub", user="ada", server="größe 中文 🎓")
    asked = Claim(key=key, profile=profile, image="a:1", may_wait=True, start_seconds=7)
    slices = (hold_of(1, "GPU-a").slice, hold_of(1, "GPU-b", memory_mib=None).slice)
    times = {
        name: at + timedelta(microseconds=number)
        for number, name in enumerate(
            ("granted_at", "running_at", "start_deadline", "detached_at", "look_again_at",
             "last_seen_at", "finished_at", "ended_at")
        )
    }  # fmt: skip
    with ledger.write() as books:
        lease_id = books.add_lease(asked, at)
        fence = books.next_fence()
        books.change_lease(
            lease_id, State.WAITING, State.ENDED, fence=fence, run_id="c" * 64,
            finished_source=Source.EVENTS, reason=encode_reason(why),
            slices=[slice_to_dict(item) for item in slices], **times,
        )  # fmt: skip
    with ledger.read() as books:
        lease = books.lease(lease_id)
        assert books.last_of_server(key) == lease
        assert books.living_of_server(key) is None
    assert lease is not None
    got = {name: getattr(lease, name) for name in times}
    assert got == times
    assert {value.tzinfo for value in got.values()} == {UTC}
    assert (lease.key, lease.profile, lease.image, lease.engine) == (key, profile, "a:1", "docker")
    assert (lease.requested_at, lease.may_wait, lease.start_seconds) == (at, True, 7)
    assert (lease.state, lease.fence, lease.run_id) == (State.ENDED, fence, "c" * 64)
    assert (lease.finished_source, lease.reason) == (Source.EVENTS, why)
    assert lease.slices == slices


@pytest.mark.parametrize("mode", Mode)
def test_holds_in_the_database(ledger: Ledger, mode: Mode) -> None:
    unit = "whole" if mode is Mode.WHOLE else "MIG-1"
    with ledger.write() as books:
        lease_id = books.add_lease(claim("ada"), T0)
        hold = hold_of(
            lease_id, "GPU-a", mode=mode, unit=unit, memory_mib=None, compute_percent=5,
            instance_profile="1g.5gb", group="ml101",
        )  # fmt: skip
        books.add_holds([hold])
    with ledger.read() as books:
        assert books.holds() == [hold]
        assert type(books.holds()[0]) is Hold


def test_a_time_of_another_zone_comes_back_as_the_same_moment_in_utc(ledger: Ledger) -> None:
    there = datetime(2026, 9, 1, 16, 0, tzinfo=timezone(timedelta(hours=8)))
    with ledger.write() as books:
        lease_id = books.add_lease(claim("ada"), there)
    with ledger.read() as books:
        lease = books.lease(lease_id)
    assert lease is not None
    assert (lease.requested_at, lease.requested_at.tzinfo) == (T0, UTC)


def test_a_time_without_zone_is_refused(ledger: Ledger) -> None:
    naive = T0.replace(tzinfo=None)
    with ledger.write() as books, pytest.raises(StatementError, match="expected an aware time"):
        books.add_lease(claim("ada"), naive)


@pytest.mark.parametrize("length", [1, 255])
def test_the_longest_names_that_a_hub_allows_fit(ledger: Ledger, length: int) -> None:
    user = "ü" * length
    key = ServerKey(hub_id="h" * 64, user=user, server="s" * 255)
    with ledger.write() as books:
        lease_id = books.add_lease(Claim(key=key, profile=WHOLE), T0)
        books.add_audit(at=T0, actor=f"user:{user}", action="request", lease_id=lease_id)
    with ledger.read() as books:
        assert [lease.key for lease in books.of_user("h" * 64, user)] == [key]
        assert [record["actor"] for record in books.audit(lease_id)] == [f"user:{user}"]


def test_audit_keeps_everything_in_order(ledger: Ledger) -> None:
    why = Reason(Code.FORCED, {"actor": "cho", "note": "测试"})
    detail: dict[str, Any] = {"slices": ["GPU-a"], "exit_code": None}
    with ledger.write() as books:
        books.add_audit(at=T0, actor="hub", action="end", lease_id=7, reason=why, detail=detail)
        books.add_audit(at=T0, actor="cho", action="cordon", target="GPU-a")
    with ledger.read() as books:
        first, second = books.audit()
        assert books.audit(7) == [first]
        assert books.audit(limit=1) == [first]
    assert (first["at"], first["reason"], first["detail"]) == (T0, why, detail)
    assert (second["target"], second["reason"], second["detail"]) == ("GPU-a", None, None)


Opener = Callable[..., Ledger]


def test_what_one_process_wrote_another_reads(ledger_url: str, open_ledger: Opener) -> None:
    first, second = open_ledger(ledger_url), open_ledger(ledger_url)
    with first.write() as books:
        lease_id = books.add_lease(claim("ada"), T0)
    with second.read() as books:
        assert [lease.lease_id for lease in books.living()] == [lease_id]
