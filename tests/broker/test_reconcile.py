"""The reconciler on a real ledger: late, lost, put back, conflicting and foreign containers."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from gpuspawner.broker.invariants import broken_promises
from gpuspawner.domain.leases import Source, State
from gpuspawner.domain.reasons import Code, RefusedError
from gpuspawner.domain.reconciliation import Stray
from gpuspawner.ledger.store import Ledger
from tests.broker.looks import actions, audit
from tests.broker.reconcile_world import LAB, Site
from tests.builders import ML_SHARE, NEVER_RAN, T0, WANTED, after, claim, key, share_hold

G0, G1 = (str(each.uuid) for each in LAB)


# Late containers.

pytestmark = pytest.mark.proves("R4")


@pytest.mark.proves("R6")
def test_a_late_container_is_stopped_and_its_gpu_stays_with_whom_it_was_given_to(
    site: Site,
) -> None:
    late = site.grant("ada")
    site.end(late)
    site.run("ben")
    assert site.living() == {"ben": G0}
    site.engine.put(late, run_id="late")
    assert site.reconciler.round()
    assert site.engine.cleared == ["late"]
    assert site.living() == {"ben": G0}
    assert site.strays() == []


@pytest.mark.proves("R6")
@pytest.mark.parametrize("runs", [True, False])
def test_of_two_containers_of_one_grant_the_bound_one_stays(site: Site, runs: bool) -> None:
    lease = site.run("ada")
    site.engine.put(lease, run_id="twin", runs=runs)
    site.reconciler.round()
    assert site.engine.cleared == ["twin"]
    assert site.lease("ada") == lease


@pytest.mark.parametrize("state", [State.GRANTED, State.RUNNING, State.ENDING])
def test_what_the_books_know_is_left_alone(site: Site, state: State) -> None:
    lease = site.grant("ada")
    found = site.engine.put(lease, runs=state is not State.GRANTED)
    if state is not State.GRANTED:
        site.hub.bind(lease, found.run_id, site.now)
        site.hub.run(lease, after(5), site.now)
    if state is State.ENDING:
        site.hub.want_end(lease.lease_id, WANTED, site.now)
    before = site.lease("ada"), actions(site.hub)
    assert site.reconciler.round()
    assert (site.lease("ada"), actions(site.hub)) == before
    assert site.engine.asked == ["list", "identity"]


# Books that lack a grant.


@pytest.mark.proves("P1", "R1")
def test_books_that_were_deleted_enter_what_runs_again(
    site: Site, make_books: Callable[[], Ledger]
) -> None:
    lease = site.run("ada")
    books = make_books()
    site.use(books, observed=False)
    site.reconciler.round()
    site.observe()

    again = site.lease("ada")
    assert again.fence == lease.fence
    assert (again.state, again.slices, again.run_id) == (
        State.RUNNING, lease.slices, lease.run_id,
    )  # fmt: skip
    assert (again.profile, again.image, again.engine) == (lease.profile, lease.image, "docker")
    assert (again.engine_id, again.running_at) == ("engine-1", after(5))
    assert site.free() == [G1]
    assert actions(site.hub, again) == ["request", "grant"]
    assert audit(site.hub, again)[1]["detail"] == {"slices": [G0], "readopted": True}
    ben = site.grant("ben")
    assert [item.uuid for item in ben.slices] == [G1]
    assert ben.fence > lease.fence  # type: ignore[operator]
    with pytest.raises(RefusedError) as refused:
        site.grant("cho")
    assert refused.value.reason.code is Code.ALL_IN_USE
    assert site.strays() == []
    assert broken_promises(books) == []


@pytest.mark.proves("R6")
def test_numbers_of_grants_go_on_above_what_runs_whatever_the_clock_says(
    site: Site, make_books: Callable[[], Ledger]
) -> None:
    """The machine's clock was far ahead when the former books gave them."""
    site.now = after(10**8)
    lease = site.run("ada")
    site.now = after(200)
    site.use(make_books())
    site.reconciler.round()
    assert site.lease("ada").fence == lease.fence
    assert site.grant("ben").fence == lease.fence + 1  # type: ignore[operator]


def test_a_second_round_enters_nothing_twice(site: Site, make_books: Callable[[], Ledger]) -> None:
    site.run("ada")
    site.use(make_books())
    for _ in range(3):
        site.reconciler.round()
        site.restart()
    with site.ledger.read() as books:
        assert len(books.recent()) == 1


def test_make_books_that_name_no_hub_learn_it_from_the_agents_surroundings(
    site: Site, make_books: Callable[[], Ledger]
) -> None:
    lease = site.run("ada")
    other = replace(lease, key=replace(lease.key, hub_id="elsewhere"))
    del site.engine.there[lease.run_id or ""]
    site.engine.put(other, run_id="c1")
    site.use(make_books())
    site.reconciler.round()
    assert site.living() == {}
    assert site.strays() == [Stray(run_id="c1", name="c1", devices=(LAB[0].uuid,))]
    site.hubs = frozenset({"elsewhere"})
    site.reconciler.round()
    with site.ledger.read() as books:
        (entered,) = books.recent()
    assert (entered.key.hub_id, entered.fence) == ("elsewhere", lease.fence)


@pytest.mark.proves("P1", "R1")
def test_yesterdays_books_with_a_lease_that_has_ended_since(site: Site) -> None:
    """The server has another container by now, of a grant that these books lack."""
    yesterday = site.run("ada")
    former = site.engine.there.pop(yesterday.run_id or "")
    today = replace(
        yesterday, fence=(yesterday.fence or 0) + 5, slices=(replace_device(yesterday, G1),)
    )
    running = site.engine.put(today, run_id="today")
    site.reconciler.round()
    # While the books believe in the former one, what runs is kept clear of.
    assert site.living() == {"ada": G0}
    assert [each.devices for each in site.strays()] == [(G1,)]
    assert site.free() == []
    assert former.run_id not in site.engine.there
    site.hub.end(yesterday.lease_id, WANTED, NEVER_RAN, site.now)  # the guard found it gone
    site.reconciler.round()
    assert site.living() == {"ada": G1}
    assert site.lease("ada").run_id == running.run_id
    site.reconciler.round()
    assert site.strays() == []
    assert site.free() == [G0]


def replace_device(lease, uuid: str):  # type: ignore[no-untyped-def]
    return replace(lease.slices[0], device_uuid=uuid)


@pytest.mark.proves("P1", "R1")
def test_yesterdays_books_that_gave_the_leases_number_to_somebody_else(
    site: Site, make_books: Callable[[], Ledger]
) -> None:
    """A lease is looked for by the number of its grant alone."""
    lease = site.run("ada")
    site.use(make_books())
    site.now = after(130)
    ben = site.grant("ben", ML_SHARE)
    site.end(ben)
    assert ben.lease_id == lease.lease_id
    site.reconciler.round()
    assert site.living() == {"ada": G0}
    assert site.lease("ada").lease_id != ben.lease_id
    assert site.engine.cleared == []


@pytest.mark.proves("P1", "R1")
def test_where_two_have_one_device_nothing_more_of_it_is_granted(
    site: Site, make_books: Callable[[], Ledger]
) -> None:
    """New books gave ada's device to ben before anybody compared: the worst that can be."""
    site.run("ada")
    site.now = after(130)
    site.use(make_books())
    assert site.grant("ben").slices[0].uuid == G0
    site.reconciler.round()
    assert site.living() == {"ben": G0}
    assert [each.devices for each in site.strays()] == [(G0,)]
    assert site.engine.cleared == []
    site.end(site.lease("ben"))
    assert G0 not in site.free()
    site.reconciler.round()
    assert site.living() == {"ada": G0}


@pytest.mark.proves("P1")
def test_a_grant_number_that_two_books_gave_stops_nobodys_server(
    site: Site, make_books: Callable[[], Ledger]
) -> None:
    """A clock that was set back may lead there."""
    lease = site.run("ada")
    site.use(make_books())
    site.now = after(100)
    ben = site.grant("ben")
    assert ben.fence == lease.fence
    for _ in range(2):
        site.reconciler.round()
    site.end(ben)
    site.reconciler.round()
    assert site.engine.cleared == []
    assert [each.run_id for each in site.strays()] == [lease.run_id]


@pytest.mark.proves("P1", "R1")
@pytest.mark.parametrize("first", ["whole", "share"])
def test_containers_of_several_books_that_contradict_each_other(
    site: Site, make_books: Callable[[], Ledger], first: str
) -> None:
    """Devices that nobody has observed yet are no reason to enter both."""
    whole = site.run("ada")
    mine = share_hold(9, G0, 0, 4096, "ml101").slice
    theirs = replace(whole, key=key("ben"), fence=77, slices=(mine,), profile=ML_SHARE)
    if first == "share":
        site.engine.there = {"b": site.engine.put(theirs, run_id="b"), **site.engine.there}
    else:
        site.engine.put(theirs, run_id="b")
    books = make_books()
    site.use(books, observed=False)
    site.reconciler.round()
    assert list(site.living()) == (["ada"] if first == "whole" else ["ben"])
    assert len(site.strays()) == 1
    site.observe()
    assert broken_promises(books) == []


def test_one_that_is_not_readable_or_has_ended(
    site: Site, make_books: Callable[[], Ledger]
) -> None:
    lease = site.run("ada")
    site.engine.there.clear()
    site.engine.put(lease, run_id="odd", grant=None)
    site.engine.put(replace(lease, fence=99), run_id="ended", runs=False)
    site.use(make_books())
    site.reconciler.round()
    assert site.living() == {}
    assert site.engine.cleared == ["ended"]
    assert site.strays() == [Stray(run_id="odd", name="odd", devices=(LAB[0].uuid,))]


def test_one_that_ends_between_the_list_and_the_look(
    site: Site, make_books: Callable[[], Ledger]
) -> None:
    lease = site.run("ada")
    run_id = lease.run_id or ""
    site.use(make_books())
    site.engine.on_list = lambda: site.engine.there.update(
        {run_id: replace(site.engine.there[run_id], runs=False)}
    )
    site.reconciler.round()
    assert (site.living(), site.strays(), site.engine.cleared) == ({}, [], [])
    site.engine.on_list = lambda: None
    site.reconciler.round()
    assert site.engine.cleared == [run_id]


def test_the_end_of_one_that_was_entered_again_is_like_any_other(
    site: Site, make_books: Callable[[], Ledger]
) -> None:
    site.run("ada")
    books = make_books()
    site.use(books)
    site.reconciler.round()
    lease = site.lease("ada")
    site.hub.end(lease.lease_id, WANTED, replace(NEVER_RAN, source=Source.LAST_SEEN), site.now)
    assert site.free() == [G0, G1]
    assert broken_promises(books) == []
    assert site.hub.request(claim("ada"), site.now).requested_at > T0
