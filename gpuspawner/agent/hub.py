"""What the hub says it runs: asked by the agent, to find servers that the hub has forgotten."""

import os
from collections.abc import Mapping
from typing import Any, Final

import requests

from gpuspawner.steps import UNWATCHED, Steps

TIMEOUT_SECONDS: Final = 20
PAGE: Final = 200
_PAGES: Final = "application/jupyterhub-pagination+json"


class HubAwayError(Exception):
    """The hub did not answer, or not wholly: nothing is known of its servers."""


class HubServers:
    """A hub's active and pending servers, by its REST API. Calls block and have a time limit.

    The token needs the scopes ``list:users`` and ``read:servers``.
    """

    def __init__(self, api_url: str, token: str, steps: Steps = UNWATCHED) -> None:
        """Name the hub; nothing is asked yet."""
        self._url = api_url.rstrip("/")
        self._steps = steps
        self._headers = {"Authorization": f"token {token}", "Accept": _PAGES}

    def servers(self) -> set[tuple[str, str]]:
        """Return user and server name of all that are active or pending.

        Raises:
            HubAwayError: any part of the answer is missing or is none of the hub's.
        """
        found: set[tuple[str, str]] = set()
        offset: int | None = 0
        while offset is not None:
            page = self._page(offset)
            found.update(_servers_of(page))
            following = page["_pagination"].get("next")
            if following is not None and following["offset"] <= offset:
                raise HubAwayError("the hub's pages do not come to an end")
            offset = None if following is None else following["offset"]
        return found

    def _page(self, offset: int) -> dict[str, Any]:
        try:
            with self._steps.around("hub:servers"), requests.Session() as session:
                session.trust_env = False  # the hub is on this machine or its network
                answer = session.get(
                    f"{self._url}/users",
                    params={"state": "active", "offset": str(offset), "limit": str(PAGE)},
                    headers=self._headers, timeout=TIMEOUT_SECONDS, allow_redirects=False,
                )  # fmt: skip
            if answer.status_code != 200:
                raise HubAwayError(f"the hub answers {answer.status_code}")
            page = answer.json()
            if not (isinstance(page["items"], list) and isinstance(page["_pagination"], dict)):
                raise HubAwayError("the hub's answer is no page of users")
        except (requests.RequestException, OSError, ValueError, KeyError, TypeError) as error:
            raise HubAwayError(f"the hub does not answer: {error}") from error
        return dict(page)


def _servers_of(page: Mapping[str, Any]) -> set[tuple[str, str]]:
    try:
        return {
            (str(user["name"]), str(name)) for user in page["items"] for name in user["servers"]
        }
    except (KeyError, TypeError) as error:
        # Without the scope read:servers the field is missing: that is no "none runs".
        raise HubAwayError(f"the hub tells of no servers: {error}") from error


def hub_servers_from_environment(steps: Steps = UNWATCHED) -> HubServers | None:
    """Return the hub that started this process or whose token it was given; None without one."""
    url, token = os.environ.get("JUPYTERHUB_API_URL"), os.environ.get("JUPYTERHUB_API_TOKEN")
    return HubServers(url, token, steps) if url and token else None
