"""How the service waits, on its loop: for its hub's end, for its port, for its turn."""

import asyncio
import ipaddress
import logging
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from gpuspawner.lifetime import PARENT_CHECK_SECONDS, Parent

log = logging.getLogger(__name__)

_LONGEST_WAIT_SECONDS: Final = 30.0
_SAY_AGAIN_AFTER: Final = 10  # attempts


async def wait_gone(parent: Parent, every_seconds: float = PARENT_CHECK_SECONDS) -> None:
    """Return once the parent is gone."""
    while not parent.gone:  # noqa: ASYNC110 - nobody tells us; we look
        await asyncio.sleep(every_seconds)


def backoff(first_seconds: float = 0.5) -> Iterator[float]:
    """Yield waiting times that double up to half a minute, for ever."""
    wait = first_seconds
    while True:
        yield wait
        wait = min(wait * 2, _LONGEST_WAIT_SECONDS)


async def until_done(
    what: str, attempt: Callable[[], Awaitable[str | None]], first_seconds: float = 0.5
) -> None:
    """Attempt until it works; ``attempt`` returns None, or in words what stands against it."""
    for number, wait in enumerate(backoff(first_seconds)):
        trouble = await attempt()
        if trouble is None:
            if number:
                log.warning("%s: done at attempt %d", what, number + 1)
            return
        if number % _SAY_AGAIN_AFTER == 0:
            log.warning("%s: %s; trying again until it works", what, trouble)
        await asyncio.sleep(wait)


def bind(address: str, port: int) -> list[socket.socket]:
    """Listen on an address, or on those of a name. Blocks while a name is resolved.

    Raises:
        OSError: it is taken or not there; or it is a wildcard by another spelling, such as ``0``.
    """
    found = dict.fromkeys(socket.getaddrinfo(address, port, type=socket.SOCK_STREAM))
    if any(ipaddress.ip_address(where[0]).is_unspecified for *_, where in found):
        raise OSError(f"{address} is a wildcard address, which is never listened on")
    bound: list[socket.socket] = []
    try:
        for family, kind, protocol, _, where in found:
            listener = socket.socket(family, kind, protocol)
            bound.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.setblocking(False)
            listener.bind(where)
            listener.listen(128)
    except BaseException:
        for listener in bound:
            listener.close()
        raise
    return bound


def end_soon(seconds: float = 5.0) -> None:
    """Leave the process for certain: a thread that hangs in a call must not keep it alive."""
    timer = threading.Timer(seconds, os._exit, (0,))
    timer.daemon = True
    timer.start()
