"""Faults of a hub's answers: users and servers that its API does not tell of."""

from collections.abc import Callable
from typing import Any

USERS = r"/users(\?|$)"
USER = r"/users/[^/?]+(\?|$)"
SERVER = r"/users/[^/?]+/(server|servers/[^/?]+)(\?|$)"
ACTIVITY = r"/users/[^/?]+/activity"


def each_page(change: Callable[[list[Any]], list[Any]]) -> Callable[[Any], Any]:
    """Return a change of a list, also where the hub gives it page by page (``items``)."""

    def of_answer(answer: Any) -> Any:
        if isinstance(answer, dict):
            return {**answer, "items": change(answer["items"])}
        return change(answer)

    return of_answer


def without_user(*names: str) -> Callable[[Any], Any]:
    """Return a change of ``GET /users`` that leaves out these users."""
    return each_page(lambda users: [user for user in users if user["name"] not in names])


def without_server(user_name: str, server_name: str = "") -> Callable[[Any], Any]:
    """Return a change of ``GET /users`` or ``GET /users/NAME`` that leaves out a server."""

    def of_user(user: Any) -> Any:
        if user["name"] != user_name:
            return user
        servers = user.get("servers") or {}
        kept = {name: model for name, model in servers.items() if name != server_name}
        return {**user, "servers": kept, "server": user.get("server") if "" in kept else None}

    def of_answer(answer: Any) -> Any:
        if isinstance(answer, dict) and "name" in answer:
            return of_user(answer)
        return each_page(lambda users: [of_user(user) for user in users])(answer)

    return of_answer
