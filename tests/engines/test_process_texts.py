"""What the process engine reads and writes as text."""

import os

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpuspawner.domain.leases import Lease, ServerKey
from gpuspawner.engines.look import EngineUnknownError
from gpuspawner.engines.process import marks
from gpuspawner.engines.process.table import Identity, parse_stat
from tests.engines.process_rig import key, lease_of


@given(
    pid=st.integers(1, 2**22), ticks=st.integers(0, 2**63), boot=st.text("0123456789abcdef")
)  # fmt: skip
def test_an_identity_reads_back(pid, ticks, boot):
    identity = Identity(pid=pid, started_ticks=ticks, boot=boot)
    assert Identity.parse(identity.run_id) == identity


@given(st.text() | st.text("pid:0123456789-² "))
def test_anything_else_is_no_identity(text):
    try:
        assert Identity.parse(text).run_id.split(":")[0] == "pid"
    except ValueError:
        return


@given(st.text(max_size=15), st.integers(0, 2**22), st.integers(0, 2**40))
def test_a_programs_name_does_not_confuse_its_stat_line(name, parent, ticks):
    rest = " ".join(["0"] * 17)
    process = parse_stat(9, f"9 ({name}) S {parent} {rest} {ticks} 0 0", "boot")
    assert (process.parent_pid, process.identity.started_ticks) == (parent, ticks)


@pytest.mark.parametrize("text", ["", "9 (sh", "9 (sh) S 1", "9 (sh) S x " + "0 " * 30])
def test_an_odd_stat_line_is_unknown(text):
    with pytest.raises(EngineUnknownError):
        parse_stat(9, text, "boot")


NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
KEYS = st.builds(ServerKey, hub_id=st.text("ab1", min_size=1, max_size=3), user=NAMES, server=NAMES)


def environment(key: ServerKey, lease: Lease | None) -> dict[bytes, bytes]:
    return {
        os.fsencode(name): os.fsencode(value) for name, value in marks.marks_of(key, lease).items()
    }


@given(KEYS, KEYS, st.integers(1, 200), st.integers(1, 200))
def test_marks_name_one_server_and_one_grant(one, other, first, second):
    """By the number of the grant: that of a lease may be another's in books that are new."""
    assume(one != other)
    mine = lease_of(lease_id=5, fence=first, key=one)
    given_marks = environment(one, mine)
    assert marks.is_of_server(given_marks, one)
    assert not marks.is_of_server(given_marks, other)
    assert marks.is_of_lease(given_marks, mine)
    assert marks.is_of_lease(given_marks, lease_of(lease_id=6, fence=first, key=one))
    same = (one.hub_id, first) == (other.hub_id, second)
    assert marks.is_of_lease(given_marks, lease_of(lease_id=5, fence=second, key=other)) is same
    assert marks.is_waiting(given_marks)
    assert marks.key_and_fence_of(given_marks) == (one, first)
    assert marks.lease_mark(given_marks) == marks.lease_mark(environment(one, mine))


@given(KEYS)
def test_a_server_without_a_grant_has_no_mark_of_one(key):
    assert marks.key_and_fence_of(environment(key, None)) is None
    assert marks.lease_mark(environment(key, None)) is None


GOOD = environment(key("ada"), lease_of())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (marks.SERVER, None), (marks.SERVER, "3:hub"), (marks.SERVER, "3:hub9:ada"),
        (marks.SERVER, "\udcff"), (marks.SERVER, "3:hu-3:ada"),
        (marks.LEASE, None), (marks.LEASE, ""), (marks.LEASE, "hub:7"), (marks.LEASE, "hub:7:x"),
        (marks.LEASE, "hub:7:²"), (marks.LEASE, "hub:7:-3"), (marks.LEASE, "hub:7:" + "9" * 30),
        (marks.LEASE, "other:7:3"),
    ],
)  # fmt: skip
def test_marks_that_somebody_made_up_are_none(name, value):
    """Anybody may call his own process what he likes; no round may end by it."""
    assert marks.key_and_fence_of(GOOD) == (key("ada"), 3)
    forged = {each: text for each, text in GOOD.items() if each != name.encode()}
    if value is not None:
        forged[name.encode()] = os.fsencode(value)
    assert marks.key_and_fence_of(forged) is None
