"""The service is killed at each of its steps: its hub starts it again, and who logs in gets in."""

from typing import Any

import pytest
import requests

from tests.doubles.drill import DRILLED, Drill, operations
from tests.e2e.drills import QUICK_SERVICES, unique
from tests.rig.processes import descendants, wait_for
from tests.service.desk import Desk, make_desk

__all__ = ["make_desk"]

CONFIG = """
c.JupyterHub.services = [{{"name": "gpu", "environment": {service!r}}}]
"""


def me(desk: Desk, token: str) -> Any:
    """What the service says of who asks; None while it does not answer."""
    headers = {"Authorization": f"token {token}"}
    try:
        with requests.Session() as session:
            session.trust_env = False
            answer = session.get(f"{desk.page_url}api/me", headers=headers, timeout=10)
    except OSError:
        return None
    return answer.json() if answer.status_code == 200 else None


def services(desk: Desk) -> list[Any]:
    return [
        process for process in descendants(desk.hub.pid)
        if process.cmdline()[-1:] == ["service"] or "gpuspawner.service.app" in process.cmdline()
    ]  # fmt: skip


@pytest.mark.proves("R7")
def test_the_service_is_killed_at_each_step(make_desk, tmp_path):
    drill = Drill(tmp_path / "drill")
    desk = make_desk(QUICK_SERVICES + CONFIG.format(service=drill.environment("service")))
    desk.grant("ada", "mig-2g")
    token = desk.hub.user_token("ada")
    wait_for("an answer", lambda: me(desk, token))
    names = unique(drill.trace("service"))
    assert operations(names) == DRILLED["service"]

    for name in names:
        (before,) = services(desk)
        order = drill.order("service", name, "kill")
        if name.startswith("ledger:open"):
            before.kill()  # the next one passes it at its start
        wait_for(f"death at {name}", lambda: (me(desk, token), drill.is_done(order))[1])  # noqa: B023

        said = wait_for("an answer", lambda: me(desk, token), timeout=60)

        assert said["user"] == "ada"
        assert [item["profile"]["name"] for item in said["living"]] == ["mig-2g"]
        assert len(services(desk)) == 1
        assert services(desk) != [before]

    for what in ("fail", "delay"):
        orders = [drill.order("service", x, what) for x in names if "open" not in x]
        wait_for(
            f"each step to {what}",
            lambda: (me(desk, desk.hub.user_token("ada")), all(map(drill.is_done, orders)))[1],  # noqa: B023
            timeout=60,
        )
        assert wait_for("an answer", lambda: me(desk, token))["user"] == "ada"
    assert len(services(desk)) == 1
