"""The fault proxy before a real hub's API: users and servers that are not told of."""

from collections.abc import Callable
from typing import Any

from tests.doubles.fault_proxy import FaultProxy
from tests.doubles.hub_faults import (
    ACTIVITY,
    SERVER,
    USER,
    USERS,
    without_server,
    without_user,
)
from tests.rig.hub import HubProcess
from tests.rig.hub_api import HubAPI

ADA = {"name": "ada", "server": "/user/ada/", "servers": {"": {"ready": True}, "two": {}}}
BEN = {"name": "ben", "server": None, "servers": {}}


def test_a_server_left_out() -> None:
    without_default = {"name": "ada", "server": None, "servers": {"two": {}}}
    assert without_server("ada")(ADA) == without_default
    assert without_server("ada")([ADA, BEN]) == [without_default, BEN]
    page = {"items": [ADA, BEN], "_pagination": {"next": None}}
    assert without_server("ada")(page) == {**page, "items": [without_default, BEN]}
    named = without_server("ada", "two")(ADA)
    assert named == {**ADA, "servers": {"": {"ready": True}}}
    assert without_user("ada")(page)["items"] == [BEN]


def test_before_a_hub(make_hub: Callable[..., HubProcess]) -> None:
    hub = make_hub("c.JupyterHub.spawner_class = 'simple'\n")
    for user in ("ada", "ben"):
        hub.add_user(user)
    with FaultProxy(f"{hub.url}hub/api") as proxy:
        assert proxy.url.endswith("/hub/api")
        way = HubAPI(proxy.url.removesuffix("hub/api"), hub.token)

        def told() -> list[str]:
            users = [user["name"] for user in way.api("GET", "/users").body]
            return sorted(set(users) - {"admin"})

        assert told() == ["ada", "ben"]
        with proxy.during("GET", USERS, change=without_user("ada")):
            assert told() == ["ben"]
        with proxy.during("GET", USER, status=404):
            assert way.api("GET", "/users/ada").status == 404
            assert told() == ["ada", "ben"]
        trouble: dict[str, Any] = {"status": 429, "headers": {"Retry-After": "3"}}
        with proxy.during("DELETE", SERVER, **trouble) as fault:
            answer = way.stop_server("ada")
            assert (answer.status, answer.headers["Retry-After"]) == (429, "3")
            assert way.stop_server("ada", "two").status == 429
            assert fault.count == 2
        with proxy.during("POST", ACTIVITY, status=503):
            assert way.api("POST", "/users/ada/activity", json={"servers": {}}).status == 503
        assert way.stop_server("ada").status == 204
        with proxy.during("DELETE", "/users/ben", lose=True) as fault:
            try:
                way.api("DELETE", "/users/ben")
            except OSError:
                assert fault.passed.is_set()
        assert told() == ["ada"]
