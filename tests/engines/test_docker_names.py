"""Names that are legal and never meet, labels that lead back, and the engine's own words."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.domain.leases import Evidence, Source
from gpuspawner.engines.docker import labels
from gpuspawner.engines.docker.reading import parse_time, read_state
from gpuspawner.engines.docker.runtime import newest
from gpuspawner.engines.look import Absent, Finished, Made, Running, evidence_of
from gpuspawner.engines.naming import safe_part
from tests.builders import key

# As an engine has them for containers and volumes, and with no capital for other engines to come.
LEGAL = re.compile(r"[a-z0-9][a-z0-9-]*")
odd = st.text("aA-_.b@0é", max_size=12) | st.text(max_size=80)


@given(odd, odd)
def test_two_names_never_get_one(one: str, other: str) -> None:
    assert (safe_part(one) == safe_part(other)) is (one == other)


@given(odd)
def test_any_name_gets_a_legal_one(name: str) -> None:
    part = safe_part(name)
    assert LEGAL.fullmatch(part)
    assert len(part) <= 37
    assert "--" not in part  # which stands between a user's part and a server's
    assert not part.endswith("-")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ada", "Ada"), ("ada", "ada-"), ("a-b", "a--b"), ("a.b", "a_b"), ("", "x"), ("ä", "a"),
        ("a" * 32, "a" * 33), ("a" * 300, "a" * 301), ("ada", "ada\n"), ("ada", " ada"),
        ("x-e3b0c44298fc", ""),
    ],
)  # fmt: skip
def test_names_that_look_alike_differ(one: str, other: str) -> None:
    assert safe_part(one) != safe_part(other)


def test_plain_names_stand_as_they_are() -> None:
    assert [safe_part(name) for name in ("ada", "ben2", "a" * 32)] == ["ada", "ben2", "a" * 32]
    assert safe_part("Ada Lovelace").startswith("ada-lovelace-")


@given(odd, odd, odd, odd)
def test_the_names_of_two_servers_never_meet(u1: str, s1: str, u2: str, s2: str) -> None:
    """As `name_template` puts them together."""

    def name(user: str, server: str) -> str:
        return safe_part(user) + (f"--{safe_part(server)}" if server else "")

    assert (name(u1, s1) == name(u2, s2)) is ((u1, s1) == (u2, s2))


@given(odd, odd)
def test_labels_say_whose_a_container_is(user: str, server: str) -> None:
    ours = labels.labels_of(key(user, server), None)
    assert labels.is_of(ours, key(user, server))
    assert not labels.is_of(ours, key(user + "x", server))
    assert not labels.is_of(ours, key(user, server + "x"))
    assert not labels.is_of({**ours, labels.HUB: "other"}, key(user, server))
    assert not labels.is_of({}, key(user, server))
    assert not labels.is_of(None, key(user, server))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-09-01T08:00:00.123456789Z", datetime(2026, 9, 1, 8, 0, 0, 123456, UTC)),
        ("2026-09-01T08:00:00.1Z", datetime(2026, 9, 1, 8, 0, 0, 100000, UTC)),
        ("2026-09-01T08:00:00Z", datetime(2026, 9, 1, 8, 0, tzinfo=UTC)),
        ("2026-09-01T16:00:00.5+08:00", datetime(2026, 9, 1, 8, 0, 0, 500000, UTC)),
        ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
    ],
)
def test_the_engines_times_are_read_as_aware_utc(text: str, expected: datetime) -> None:
    assert parse_time(text) == expected
    assert parse_time(text).utcoffset() == expected.utcoffset()


BEGAN, ENDED = "2026-09-01T08:00:00.5Z", "2026-09-01T09:00:00.25Z"
NEVER = "0001-01-01T00:00:00Z"
BEGAN_AT, ENDED_AT = parse_time(BEGAN), parse_time(ENDED)


def container(status: str, **state: Any) -> dict[str, Any]:
    given_state = {
        "Status": status, "Running": False, "Paused": False, "Restarting": False,
        "OOMKilled": False, "Dead": False, "ExitCode": 0, "StartedAt": BEGAN,
        "FinishedAt": ENDED,
    }  # fmt: skip
    return {"Id": "c1", "Created": BEGAN, "State": {**given_state, **state}}


def finished(exit_code: int = 0, *, oom: bool = False) -> Finished:
    return Finished(
        run_id="c1",
        evidence=Evidence(
            source=Source.ENGINE, finished_at=ENDED_AT, exit_code=exit_code, out_of_memory=oom
        ),
    )


RUNNING, MADE = Running(run_id="c1", started_at=BEGAN_AT), Made(run_id="c1")
STATES = [
    (container("running", Running=True, FinishedAt=NEVER), RUNNING),
    (container("paused", Running=True, Paused=True), RUNNING),
    (container("paused", Paused=True), RUNNING),  # other engines say it so; it holds what it has
    (container("restarting", Running=True, Restarting=True), RUNNING),
    (container("restarting", Restarting=True), RUNNING),
    (container("created", StartedAt=NEVER, FinishedAt=NEVER), MADE),
    (container("created", StartedAt=NEVER, FinishedAt=NEVER, ExitCode=127), MADE),
    (container("removing", StartedAt=NEVER, FinishedAt=NEVER), MADE),
    (container("exited", ExitCode=3), finished(3)),
    (container("exited", ExitCode=137, OOMKilled=True), finished(137, oom=True)),
    (container("removing"), finished()),
    (container("dead", Dead=True), finished()),
]


@pytest.mark.parametrize(("inspected", "expected"), STATES)
def test_what_a_container_is(inspected: dict[str, Any], expected: object) -> None:
    assert read_state(inspected) == expected


def test_what_a_look_proves() -> None:
    absent = Absent(evidence=Evidence(source=Source.EVENTS, finished_at=ENDED_AT))
    assert evidence_of(RUNNING) is None
    assert evidence_of(MADE) == Evidence(source=Source.NEVER_RAN)
    assert evidence_of(finished(3)) == finished(3).evidence
    assert evidence_of(absent) == absent.evidence


def test_of_several_containers_a_running_one_counts_else_the_newest() -> None:
    old, new = container("exited"), container("created", StartedAt=NEVER)
    runs = container("running", Running=True)
    assert newest([]) is None
    assert newest([old, new]) is new
    assert newest([runs, old, new]) is runs
