"""What a container means for the books, and which devices it has."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.domain.devices import HostInventory, Mode
from gpuspawner.domain.leases import HOLDING, Lease, State
from gpuspawner.domain.placement import place
from gpuspawner.domain.policy import DeviceRule, Policy
from gpuspawner.domain.pool import Pool
from gpuspawner.domain.profiles import Profile
from gpuspawner.domain.reconciliation import (
    Found,
    GrantCopy,
    Verdict,
    may_readopt,
    read_fence,
    used_devices,
    verdict,
)
from gpuspawner.domain.slices import Hold
from tests.builders import (
    ML_SHARE,
    SHARING,
    T0,
    WHOLE,
    device,
    hold_of,
    inventory,
    key,
    mig_device,
    share_hold,
    sharing_policy,
)
from tests.strategies import cordons, placed_profiles, sites

GRANT = GrantCopy(profile=WHOLE, slices=(hold_of(1, "GPU-a").slice,))
FOUND = Found(
    run_id="c1", name="nb", runs=True, made_at=T0, devices=("GPU-a",), key=key("ada"), fence=7,
    grant=GRANT,
)  # fmt: skip
OURS = frozenset({"hub", "second"})


def lease(state: State = State.RUNNING, **values: object) -> Lease:
    given_ = Lease(
        lease_id=1, key=key("ada"), state=state, profile=WHOLE, image=None, engine="docker",
        requested_at=T0, fence=7, run_id="c1",
    )  # fmt: skip
    return replace(given_, **values)


FOREIGN = (
    {"key": None, "fence": None, "grant": None},
    {"fence": None, "grant": None},
    {"key": replace(key("ada"), hub_id="elsewhere")},
)


@pytest.mark.parametrize("foreign", FOREIGN)
@pytest.mark.parametrize(
    ("runs", "devices", "attached", "expected"),
    [
        (True, ("0",), True, Verdict.REPORT),
        (True, None, True, Verdict.REPORT),
        (True, (), True, Verdict.KEEP),
        (False, None, True, Verdict.KEEP),
        (True, ("0",), False, Verdict.KEEP),  # another demo's process
    ],
)
def test_what_is_foreign_is_shown_if_it_uses_a_device_and_never_touched(
    foreign: dict[str, object], runs: bool, devices: tuple[str, ...], attached: bool,
    expected: Verdict,
) -> None:  # fmt: skip
    it = replace(FOUND, runs=runs, devices=devices, attached=attached, **foreign)
    for known in (None, lease(), lease(State.ENDED)):
        assert verdict(it, known, OURS) is expected


@pytest.mark.parametrize("state", sorted(HOLDING))
@pytest.mark.parametrize("runs", [True, False])
def test_a_container_of_a_living_lease_is_kept_unless_the_lease_has_another(
    state: State, runs: bool
) -> None:
    it = replace(FOUND, runs=runs)
    assert verdict(it, lease(state), OURS) is Verdict.KEEP
    assert verdict(it, lease(state, run_id=None), OURS) is Verdict.KEEP
    assert verdict(it, lease(state, run_id="c0"), OURS) is Verdict.CLEAR


@pytest.mark.parametrize("run_id", [None, "c1", "c0"])
def test_a_container_of_a_grant_that_is_over_is_cleared(run_id: str | None) -> None:
    assert verdict(FOUND, lease(State.ENDED, run_id=run_id), OURS) is Verdict.CLEAR


@pytest.mark.parametrize(
    "theirs", [None, lease(key=key("ben")), lease(key=key("ada", "two")), lease(State.ENDED,
               key=replace(key("ada"), hub_id="second"))],
)  # fmt: skip
def test_a_grant_that_the_books_lack_is_entered_or_shown(theirs: Lease | None) -> None:
    """Also where other books gave its number to somebody else: nobody's server is stopped."""
    assert verdict(FOUND, theirs, OURS) is Verdict.READOPT
    assert verdict(replace(FOUND, grant=None), theirs, OURS) is Verdict.REPORT
    assert verdict(replace(FOUND, runs=False), theirs, OURS) is Verdict.CLEAR


def test_a_server_that_runs_is_cleared_only_on_its_own_leases_word() -> None:
    """Of all that can be: what is cleared runs not, or its own grant is over or has another."""
    for user, run_id, state, runs, hub in product(
        ("ada", "ben"), (None, "c1", "c0"), HOLDING | {State.ENDED}, (True, False), ("hub", "x")
    ):
        it = replace(FOUND, runs=runs, key=replace(key("ada"), hub_id=hub))
        known = lease(state, key=key(user), run_id=run_id)
        if verdict(it, known, OURS) is Verdict.CLEAR:
            assert hub == "hub"
            over = state is State.ENDED or run_id == "c0"
            assert not runs or (user == "ada" and over)


@pytest.mark.parametrize(
    ("text", "fence"),
    [
        ("0", 0), ("1788249601", 1788249601), ("9" * 18, 10**18 - 1),
        ("9" * 19, None), ("", None), ("-1", None), ("²", None), ("٣", None), ("1 ", None),
    ],
)  # fmt: skip
def test_the_number_of_a_grant_fits_every_database_twice(text: str, fence: int | None) -> None:
    assert read_fence(text) == fence


LAB = inventory(
    device("a", index=0), device("b", index=1), mig_device("m", 5, 10, index=2)
)  # fmt: skip
ALL = None
A, B, M = "GPU-a", "GPU-b", "GPU-m"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((), ()), (None, ALL), (("GPU-a",), (A,)), (("1", "0"), (A, B)), (("GPU-b", "1"), (B,)),
        (("MIG-m-0", "MIG-m-1"), (M,)), (("2:1",), (M,)), (("MIG-GPU-m/1/0",), (M,)),
        (("GPU-",), (A, B, M)), (("",), (A, B, M)),
        (("GPU-gone",), ()), (("GPU-gone", "0"), (A,)), (("MIG-gone",), ()),
        (("MIG-GPU-gone/1/0",), ()),
        (("3",), ALL), (("0", "3"), ALL), (("3:0",), ALL), (("²",), ALL), (("card",), ALL),
    ],
)  # fmt: skip
def test_devices_by_the_names_that_a_container_was_given(
    names: tuple[str, ...] | None, expected: tuple[str, ...] | None
) -> None:
    assert used_devices(names, LAB) == expected


@pytest.mark.parametrize("seen", [None, inventory(trouble="no driver")])
def test_before_the_devices_are_known_it_may_be_any(seen: HostInventory | None) -> None:
    assert used_devices(("GPU-a",), seen) is ALL
    assert used_devices((), seen) == ()


def pool(*holds: Hold, policy: Policy | None = None, **values: object) -> Pool:
    return Pool(policy or sharing_policy(), [LAB], {}, holds, now=T0, **values)  # type: ignore[arg-type]


def grant(*holds: Hold, profile: Profile = WHOLE) -> GrantCopy:
    return GrantCopy(profile=profile, slices=tuple(each.slice for each in holds))


def share(uuid: str, ordinal: int, mib: int, group: str = "ml101") -> Hold:
    return share_hold(1, uuid, ordinal, mib, group)


MIG_0 = hold_of(1, M, mode=Mode.INSTANCE, unit="MIG-m-0")
SOME = share(A, 0, 8192)
TABLE = [
    # what somebody has, what is to be entered, whether it may
    ((), grant(hold_of(1, A)), True),
    ((), grant(hold_of(1, A), hold_of(1, B)), True),
    ((), grant(hold_of(1, A), hold_of(1, A)), False),
    ((hold_of(2, A),), grant(hold_of(1, A)), False),
    ((hold_of(2, A),), grant(hold_of(1, B)), True),
    ((hold_of(2, B),), grant(hold_of(1, A), hold_of(1, B)), False),
    ((SOME,), grant(hold_of(1, A)), False),
    ((hold_of(2, A),), grant(SOME, profile=ML_SHARE), False),
    ((SOME,), grant(share(A, 1, 8192), profile=ML_SHARE), True),  # all of its 16 GiB
    ((SOME,), grant(share(A, 1, 8193), profile=ML_SHARE), False),
    ((SOME,), grant(share(A, 0, 100), profile=ML_SHARE), False),
    ((SOME,), grant(share(A, 1, 100), profile=replace(ML_SHARE, groups=("vis202",))), False),
    ((SOME,), grant(MIG_0), True),
    ((MIG_0,), grant(MIG_0), False),
    ((MIG_0,), grant(hold_of(1, M, mode=Mode.INSTANCE, unit="MIG-m-1")), True),
    ((hold_of(2, M),), grant(MIG_0), False),
    # of a device that nobody observes now
    ((hold_of(2, "GPU-x"),), grant(hold_of(1, "GPU-x")), False),
    ((hold_of(2, "GPU-x"),), grant(share("GPU-x", 0, 1), profile=ML_SHARE), False),
    ((share("GPU-x", 0, 1, "vis202"),), grant(share("GPU-x", 1, 1), profile=ML_SHARE), False),
    ((share("GPU-x", 0, 1),), grant(share("GPU-x", 1, 1), profile=ML_SHARE), True),
]


@pytest.mark.proves("P1")
@pytest.mark.parametrize(("holds", "copy", "may"), TABLE)
def test_what_may_be_entered_again(holds: tuple[Hold, ...], copy: GrantCopy, may: bool) -> None:
    assert may_readopt(pool(*holds), copy) is may


def test_what_runs_holds_what_it_holds_whatever_the_site_has_decided_since() -> None:
    narrow = Policy(rules=(DeviceRule(headroom_mib=16000, modes=frozenset()),))
    closed = Pool(
        narrow, [LAB], {A: "fan"}, [SOME], now=T0, foreign={("lab", "*"): "a stranger"}
    )  # fmt: skip
    assert may_readopt(closed, grant(share(A, 1, 8192), profile=ML_SHARE))
    assert may_readopt(closed, grant(hold_of(1, B)))


@pytest.mark.proves("P1")
@given(st.data())
def test_what_was_granted_together_may_be_entered_again_together(data: st.DataObject) -> None:
    """In whatever order, and into books that know nothing of the devices or of the policy."""
    hosts = data.draw(sites())
    policy = Policy(rules=(DeviceRule(modes=SHARING),))
    before = Pool(policy, hosts, data.draw(cordons(hosts)), (), now=T0)
    granted: list[tuple[GrantCopy, list[Hold]]] = []
    for number, profile in enumerate(data.draw(st.lists(placed_profiles(), max_size=6))):
        slices = place(before, profile)
        if slices is None:
            continue
        holds = [Hold(lease_id=number, slice=x, group=profile.share_group) for x in slices]
        for each in holds:
            before.add(each)
        granted.append((GrantCopy(profile=profile, slices=slices), holds))
    anew = Pool(Policy(), hosts if data.draw(st.booleans()) else (), {}, (), now=T0)
    for copy, holds in data.draw(st.permutations(granted)):
        assert may_readopt(anew, copy)
        for each in holds:
            anew.add(each)
        assert not may_readopt(anew, copy)  # not even its own again
