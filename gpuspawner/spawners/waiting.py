"""Waiting until a server that was started answers, or has ended (hub facts H10)."""

import asyncio
from collections.abc import Awaitable, Callable

from gpuspawner.domain.reasons import Code, RefusedError, reason


async def until_it_answers(
    answers: Callable[[], Awaitable[bool]],
    check: Callable[[], Awaitable[None]],
    seconds: int,
) -> None:
    """Return once a server answers.

    Args:
        answers: asks it once.
        check: raises a refusal when the server has ended; called before each pause.
        seconds: how long it may take.

    Raises:
        RefusedError: what ``check`` raised, or that it took too long.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    pause = 0.05
    while not await answers():
        await check()
        if loop.time() > deadline:
            raise RefusedError(reason(Code.NOT_READY, seconds=seconds))
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, 0.25)


async def answers(ip: str, port: int, path: str, *, tls: bool = False) -> bool:
    """Whether somebody answers there; any answer will do, the hub asks for a good one.

    Args:
        ip: the server's address.
        port: the server's port.
        path: what to ask for.
        tls: it speaks TLS; then whoever takes the connection is enough.
    """
    try:
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection(ip, port)
            try:
                writer.write(f"GET {path} HTTP/1.0\r\nHost: {ip}\r\n\r\n".encode())
                return tls or bool(await reader.read(1))
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
