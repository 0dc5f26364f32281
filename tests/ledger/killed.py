"""A process that serves people until it is killed, and says what it promised them."""

import os
import signal
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from sqlalchemy import Engine, event

from gpuspawner.broker.broker import Broker
from gpuspawner.ledger.store import Ledger
from tests.builders import EXITED, T0, WANTED, claim, device, inventory, sharing_policy

# One process that has everything imported makes the children: each is there in a moment.
_MAKER = get_context("forkserver")
_MAKER.set_forkserver_preload([__name__])


def start(url: str, name: str, kill_at: int | None) -> tuple[Any, Connection]:
    """Start a process that serves, and is killed at its statement of this number, if one is given.

    It first ends what those left over whose name begins like its own, up to the dash.
    """
    ours, theirs = _MAKER.Pipe()
    process = _MAKER.Process(target=serve, args=(theirs, url, name, kill_at))
    process.start()
    theirs.close()
    return process, ours


def serve(pipe: Connection, url: str, name: str, kill_at: int | None) -> None:
    """Grant, bind, run and end, again and again."""
    ledger = Ledger(url)
    broker = Broker(ledger, "hub")
    broker.publish(sharing_policy(), "hub", T0)
    broker.observe(inventory(*(device(f"d{at}", index=at) for at in range(4))), T0)
    with ledger.read() as books:
        left_over = books.living()
    kind = name.split("-")[0]
    for lease in [each for each in left_over if each.key.user.startswith(kind)]:
        broker.end(lease.lease_id, WANTED, EXITED, T0)
    if kill_at is not None:
        _kill_at(kill_at)
    rounds = 0
    while True:
        rounds += 1
        lease = broker.request(claim(f"{name}-{rounds}"), T0)
        pipe.send(("granted", lease.lease_id, lease.fence))
        broker.bind(lease, f"run-{lease.lease_id}", T0)
        pipe.send(("bound", lease.lease_id, lease.fence))
        broker.run(lease, T0, T0)
        pipe.send(("running", lease.lease_id, lease.fence))
        broker.end(lease.lease_id, WANTED, EXITED, T0)
        pipe.send(("ended", lease.lease_id, lease.fence))


def _kill_at(number: int) -> None:
    seen = 0

    def count(*_: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)

    for moment in ("before_cursor_execute", "commit"):
        event.listen(Engine, moment, count)
