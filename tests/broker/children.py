"""What the tests let other processes do with a broker."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from threading import Lock

from gpuspawner.broker.broker import Broker
from gpuspawner.domain.leases import Claim, Lease
from gpuspawner.domain.reasons import RefusedError
from gpuspawner.ledger.store import Ledger
from tests.builders import ML_SHARE, NEVER_RAN, PAIR, T0, WANTED, WHOLE, claim

THREADS = 10
Pick = Callable[[int, int], Claim]


def own_server(process: int, thread: int) -> Claim:
    """Everybody asks for a server of their own."""
    return claim(f"ada-{process}-{thread}")


def named_server(process: int, thread: int) -> Claim:
    """One person asks for many named servers."""
    return claim("ada", server=f"{process}-{thread}")


def same_server(process: int, thread: int) -> Claim:
    """The same server is asked for again and again."""
    return claim("ada")


def race(pipe: Connection, url: str, process: int, line: Barrier, rounds: int, pick: Pick) -> None:
    """Ask at the same moment as all others, round after round; say what each round brought.

    Whoever got something gives it back before the next round begins.
    """
    ledger = Ledger(url, busy_seconds=60)
    broker = Broker(ledger, f"process-{process}")

    def runner(thread: int) -> list[str]:
        outcomes = []
        try:
            for _ in range(rounds):
                line.wait(120)
                got: Lease | None = None
                try:
                    got = broker.request(pick(process, thread), T0)
                    outcomes.append("granted")
                except RefusedError as error:
                    outcomes.append(str(error.reason.code))
                line.wait(120)
                if got is not None:
                    broker.end(got.lease_id, WANTED, NEVER_RAN, T0)
        except BaseException:
            line.abort()  # nobody waits for one who failed
            raise
        return outcomes

    with ThreadPoolExecutor(THREADS) as threads:
        pipe.send(list(threads.map(runner, range(THREADS))))
    ledger.close()


def ask_and_end_for_ever(pipe: Connection, url: str, process: int) -> None:
    """Request and end in several threads and say each step, until the end of the world."""
    broker = Broker(Ledger(url), "crash")
    speaking = Lock()

    def runner(thread: int) -> None:
        for number in count():
            profile = (WHOLE, ML_SHARE, PAIR)[(number + thread) % 3]
            asked = claim(f"ada-{process}-{thread}", profile, str(number), may_wait=number % 5 == 0)
            try:
                lease = broker.request(asked, T0)
                broker.bind(lease, "run", T0)
                broker.run(lease, T0, T0)
            except RefusedError:
                continue
            except Exception:  # noqa: BLE001 - who waits has no grant to bind: asked to end below
                broker.want_end(lease.lease_id, WANTED, T0)
            broker.want_end(lease.lease_id, WANTED, T0)
            broker.end(lease.lease_id, WANTED, NEVER_RAN, T0)
            with speaking:
                pipe.send(number)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(runner, range(4)))
