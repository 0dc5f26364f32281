"""What the tests let other processes do with a ledger. Each talks through a pipe."""

import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from gpuspawner.domain.leases import State
from gpuspawner.ledger.store import Ledger, LedgerAwayError
from tests.builders import T0, claim

_SPAWN = get_context("spawn")
PATIENCE = 60  # seconds until a child that says nothing is given up


@contextmanager
def child(
    work: Callable[..., None], *arguments: Any, exit_code: int = 0, kill: bool = False
) -> Iterator[Connection]:
    """Run ``work(pipe, *arguments)`` in a process of its own; it is gone afterwards.

    With ``kill`` it is killed at the end, in the middle of whatever it does.
    """
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=work, args=(theirs, *arguments))
    process.start()
    theirs.close()
    try:
        yield ours
        if kill:
            process.kill()
        process.join(PATIENCE)
        assert process.exitcode == exit_code, f"the child ended with {process.exitcode}"
    finally:
        if process.is_alive():
            process.kill()
            process.join()
        process.close()
        ours.close()


def heard(pipe: Connection, patience: float = PATIENCE) -> Any:
    """Return what the child said next."""
    assert pipe.poll(patience), "the child says nothing"
    return pipe.recv()


def outcome(url: str, *, busy_seconds: float = 1.0) -> str:
    """Try to write one lease and say what came of it."""
    ledger = Ledger(url, busy_seconds=busy_seconds)
    try:
        with ledger.write() as books:
            books.add_lease(claim("ada"), T0)
    except LedgerAwayError:
        return "away"
    except Exception as error:  # noqa: BLE001 - the test tells what it was
        return repr(error)
    finally:
        ledger.close()
    return "written"


def open_at_a_word(pipe: Connection, url: str) -> None:
    """Open a ledger when told, take one number, and say which."""
    ledger = Ledger(url)
    pipe.send("ready")
    pipe.recv()
    with ledger.write() as books:
        fence = books.next_fence()
    ledger.close()
    pipe.send(fence)


def die_inside_a_write(pipe: Connection, url: str) -> None:
    """Be killed in the middle of a write transaction."""
    with Ledger(url).write() as books:
        books.add_lease(claim("ben"), T0)
        books.next_fence()
        pipe.send("inside")
        os.kill(os.getpid(), signal.SIGKILL)


def hold_the_write_lock(pipe: Connection, url: str) -> None:
    """Stay inside a write transaction until told."""
    ledger = Ledger(url)
    with ledger.write() as books:
        books.next_fence()
        pipe.send("inside")
        pipe.recv()
    ledger.close()


def write_as_nobody(pipe: Connection, url: str) -> None:
    """Try to write with no rights to the file, and say what came of it."""
    outcome("sqlite:////nowhere/at/all")  # everything is imported while it may be read
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    pipe.send(outcome(url))


def write_on_a_full_disk(pipe: Connection, url: str, limit: int) -> None:
    """Write leases until files may grow no more; say how many went in, and how it ended."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    ledger = Ledger(url)
    written = 0
    with ledger.write():
        pass
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        while True:
            with ledger.write() as books:
                for _ in range(5):
                    books.add_lease(claim(f"user-{written}", server=str(_)), T0)
            written += 5
    except LedgerAwayError:
        pipe.send((written, "away"))
    except Exception as error:  # noqa: BLE001 - the test tells what it was
        pipe.send((written, repr(error)))
    ledger.close()


def write_leases(pipe: Connection, url: str, users: list[str]) -> None:
    """Write a lease for each person, one transaction each."""
    ledger = Ledger(url)
    for user in users:
        with ledger.write() as books:
            books.add_lease(claim(user), T0)
    ledger.close()
    pipe.send("written")


def hold_open(pipe: Connection, url: str) -> None:
    """Write a lease and keep the ledger open until told."""
    ledger = Ledger(url)
    with ledger.write() as books:
        books.add_lease(claim("kept"), T0)
    pipe.send("open")
    pipe.recv()
    with ledger.write() as books:
        books.change_lease(books.living()[-1].lease_id, State.WAITING, State.ENDED,
                           ended_at=T0)  # fmt: skip
    ledger.close()
    pipe.send("closed")
