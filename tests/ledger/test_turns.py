"""Waiting in line: in one process first come first served, and processes one after the other."""

import fcntl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuspawner.ledger.store import Ledger
from gpuspawner.ledger.turns import Queue, Turns
from tests.builders import T0, after, claim, device, hold_of, inventory
from tests.rig.processes import wait_for

Opener = Callable[..., Ledger]


def test_a_queue_goes_to_who_waited_longest() -> None:
    queue, order = Queue(), []
    assert queue.acquire(60)
    threads = []

    def wait(number: int) -> None:
        assert queue.acquire(60)
        order.append(number)
        queue.release()

    for number in range(5):
        thread = threading.Thread(target=wait, args=(number,))
        thread.start()
        threads.append(thread)
        wait_for("it to stand in line", lambda n=number: len(queue._waiting) > n, timeout=60)
    queue.release()
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4]
    assert queue.acquire(0)


def test_who_waited_too_long_leaves_the_queue() -> None:
    queue = Queue()
    assert queue.acquire(0)
    assert not queue.acquire(0.01)
    queue.release()
    assert queue.acquire(0)
    queue.release()


def test_who_just_had_the_turn_is_behind_who_waits(tmp_path: Path) -> None:
    file = tmp_path / "ledger.sqlite"
    one, other, third = (Turns(file) for _ in range(3))  # as three processes: each has its files
    order = []

    def wait() -> None:
        with other.turn(60):
            order.append("other")

    with one.turn(60):
        thread = threading.Thread(target=wait)
        thread.start()
        following, _ = third._opened()
        wait_for("the other to be the next", lambda: is_locked(following), timeout=60)
        order.append("one")
    with one.turn(60):
        order.append("one again")
    thread.join()
    assert order == ["one", "other", "one again"]
    for turns in (one, other, third):
        turns.close()


def is_locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(handle, fcntl.LOCK_UN)
    return False


def test_without_the_files_nobody_waits(tmp_path: Path) -> None:
    turns = Turns(tmp_path / "none" / "ledger.sqlite")
    with turns.turn(60):
        assert turns._handles == []


def test_a_turn_that_never_comes_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    first, second = (Turns(tmp_path / "ledger.sqlite") for _ in range(2))
    with first.turn(60), second.turn(0.01):
        pass
    with second.turn(0):
        pass
    for turns in (first, second):
        turns.close()


def test_the_kept_view_knows_what_others_wrote(ledger_url: str, open_ledger: Opener) -> None:
    one, other = open_ledger(ledger_url), open_ledger(ledger_url)
    with one.write() as books:
        books.save_host(inventory(device("a"), device("b")))
        numbers = [books.add_lease(claim(user), T0) for user in ("ada", "ben")]
        assert len(list(books.view(T0).free_whole())) == 2
    with other.write() as books:
        books.add_holds([hold_of(numbers[0], "GPU-a")])
    with one.write() as books:
        assert [item.device.uuid for item in books.view(T0).free_whole()] == ["GPU-b"]
        books.add_holds([hold_of(numbers[1], "GPU-b")])
    with other.write() as books:
        assert list(books.view(T0).free_whole()) == []
        books.delete_holds(numbers[0])
        books.save_cordon("GPU-b", "fan", "cho", T0)
    with one.write() as books:
        view = books.view(after(61))
        assert [item.device.uuid for item in view.free_whole()] == ["GPU-a"]
        assert view.devices["GPU-b"].unavailable is not None
        assert not view.devices["GPU-a"].fresh


def test_the_kept_view_forgets_what_was_rolled_back(ledger: Ledger) -> None:
    with ledger.write() as books:
        books.save_host(inventory(device("a")))
        number = books.add_lease(claim("ada"), T0)
    with pytest.raises(ZeroDivisionError):
        grant_and_fail(ledger, number)
    with ledger.write() as books:
        assert [item.device.uuid for item in books.view(T0).free_whole()] == ["GPU-a"]


def grant_and_fail(ledger: Ledger, number: int) -> None:
    with ledger.write() as books:
        view, hold = books.view(T0), hold_of(number, "GPU-a")
        view.add(hold)
        books.add_holds([hold])
        assert list(view.free_whole()) == []
        _ = 1 / 0
