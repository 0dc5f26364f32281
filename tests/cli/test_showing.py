"""``status`` and ``leases``: what people and scripts read."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from gpuspawner.broker.broker import Broker
from gpuspawner.cli import status
from gpuspawner.domain.devices import DeviceUUID, HostId
from gpuspawner.domain.leases import Lease
from gpuspawner.domain.reasons import Code, RefusedError, reason
from gpuspawner.domain.uses import Attribution, Use
from tests.builders import EXITED, ML_SHARE, SMALL_MIG, T0, WHOLE, after, claim, inventory
from tests.cli.conftest import Ran

Run = Callable[..., Ran]


@pytest.fixture
def four(broker: Broker) -> list[Lease]:
    """One that ended, one that runs, one with an instance, one with a share; one refused."""
    made = [broker.request(claim("ada", WHOLE), T0)]
    broker.bind(made[0], "c1", after(1))
    broker.run(made[0], after(2), after(2))
    broker.end(made[0].lease_id, reason(Code.EXITED, exit_code=3), EXITED, after(3))
    for user, profile, server in (
        ("ben", SMALL_MIG, ""), ("cho", ML_SHARE, "lab"), ("ada", WHOLE, ""),
    ):  # fmt: skip
        made.append(broker.request(claim(user, profile, server), after(4)))
    with pytest.raises(RefusedError):
        broker.request(claim("ben", WHOLE, "more"), after(5))
    broker.bind(made[2], "c2", after(6))
    broker.run(made[2], after(6), after(6))
    use = Use(lease_id=made[2].lease_id, uuid=DeviceUUID("GPU-aa11"), memory_mib=1536,
              busy_percent=60, processes=())  # fmt: skip
    with broker.ledger.read() as books:
        (seen,) = books.hosts()
    broker.observe(seen, T0, Attribution(host_id=HostId("lab"), observed_at=T0, uses=(use,)))
    return made


STATUS = """\
Host lab (simulated, no real hardware)
DEVICE             UUID / UNIT  MEMORY  USED     BUSY  STATE
#0 Tesla T4        GPU-aa11     16 GiB  0 MiB    0 %
   slice           share-0      4 GiB   1.5 GiB  60 %  cho/lab
#1 Tesla T4        GPU-aa22     —       2.9 GiB  97 %
   slice           whole        —       —        —     ada
#2 Tesla T4        GPU-bb33     16 GiB  0 MiB    0 %   unavailable: sick XID 79
#3 A100-SXM4-40GB  GPU-cc44     40 GiB  —        —
   1g.5gb          MIG-cc44-0   5 GiB   —        —     ben
   2g.10gb         MIG-cc44-1   10 GiB                 free
"""


def test_status_for_people(run: Run, four: list[Lease]) -> None:
    assert run("status") == Ran(0, STATUS, "")


def test_status_for_scripts(run: Run, four: list[Lease]) -> None:
    ran = run("status", "--json")
    assert (ran.status, ran.err) == (0, "")
    report = json.loads(ran.out)
    assert report["living_leases"] == 3
    (host,) = report["hosts"]
    devices = host.pop("devices")
    assert host == {
        "host_id": "lab", "observed_at": T0.isoformat(), "silent": False, "simulated": True,
        "trouble": None, "attribution_unavailable": None,
    }  # fmt: skip
    assert devices[2] == {
        "uuid": "GPU-bb33", "index": 2, "model": "Tesla T4", "memory_mib": 16384, "used_mib": 0,
        "reserved_mib": None, "busy_percent": 0, "partitioned": False,
        "modes": ["time-sliced", "whole"],
        "unavailable": {"trouble": "sick", "detail": "XID 79"}, "slices": [],
    }  # fmt: skip
    # Unknown is null, and never 0.
    assert (devices[1]["memory_mib"], devices[1]["used_mib"]) == (None, 3000)
    assert (devices[3]["used_mib"], devices[3]["busy_percent"]) == (None, None)
    assert devices[3]["slices"] == [
        {"unit": "MIG-cc44-0", "profile": "1g.5gb", "memory_mib": 5120, "unavailable": None,
         "lease_id": four[1].lease_id, "holder": "ben", "unknown_since": None,
         "unknown_why": None, "used_mib": None, "busy_percent": None},
        {"unit": "MIG-cc44-1", "profile": "2g.10gb", "memory_mib": 10240, "unavailable": None,
         "lease_id": None, "holder": None, "unknown_since": None, "unknown_why": None,
         "used_mib": None, "busy_percent": None},
    ]  # fmt: skip
    share = devices[0]["slices"][0]
    assert (share["holder"], share["used_mib"], share["busy_percent"]) == ("cho/lab", 1536, 60)


def test_status_says_where_attribution_is_not_available(run: Run, broker: Broker) -> None:
    broker.observe(inventory(), T0, Attribution(
        host_id=HostId("lab"), observed_at=T0, unavailable="It sees its own container only.",
    ))  # fmt: skip
    assert json.loads(run("status", "--json").out)["hosts"][0]["attribution_unavailable"] == (
        "It sees its own container only."
    )
    assert "whose processes run is not known: It sees its own container only." in run("status").out


def test_a_silent_host_is_told_from_an_idle_one(
    run: Run, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "now", lambda: after(3600))
    assert f"silent since {T0.isoformat()}: all below may have changed" in run("status").out
    assert json.loads(run("status", "--json").out)["hosts"][0]["silent"] is True


def test_a_host_in_trouble_says_so(run: Run, broker: Broker) -> None:
    broker.observe(inventory(host_id="tower", trouble="NVML: driver not loaded"), T0)
    assert "Host tower (simulated, no real hardware; NVML: driver not loaded)" in run("status").out


def test_status_without_an_agent(run: Run, ledger: Any) -> None:
    Broker(ledger, "hub").settle(T0)
    ran = run("status")
    assert ran.out == "No agent has reported a host yet. Is `gpuspawner agent` running?\n"
    assert json.loads(run("status", "--json").out) == {
        "hosts": [], "engines": [], "strays": [], "living_leases": 0,
    }  # fmt: skip


HEAD = "LEASE  SERVER    PROFILE    STATE    SINCE (UTC)          SLICES            REASON\n"
LIVING = """\
4      ada       whole      granted  2026-09-01 08:00:04  GPU-aa22
3      cho/lab   ml-share   running  2026-09-01 08:00:04  GPU-aa11/share-0
2      ben       mig-small  granted  2026-09-01 08:00:04  MIG-cc44-0
"""
REFUSED = "5      ben/more  whole      ended    2026-09-01 08:00:05  -                 All taken\n"
ENDED = (
    "1      ada       whole      ended    2026-09-01 08:00:00  GPU-aa11          Ended by itself\n"
)


def test_leases_for_people(run: Run, four: list[Lease]) -> None:
    ran = run("leases")
    assert (ran.status, ran.err) == (0, "")
    assert [line.split() for line in ran.out.splitlines()] == [
        line.split() for line in (HEAD + LIVING).splitlines()
    ]
    assert run("leases", "--all") == Ran(0, HEAD + REFUSED + LIVING + ENDED, "")


def test_some_leases_for_people(run: Run, four: list[Lease]) -> None:
    def numbers(*arguments: str) -> list[str]:
        return [line.split()[0] for line in run("leases", *arguments).out.splitlines()[1:]]

    assert numbers("--all", "--limit", "2") == ["5", "4"]
    assert numbers("--all", "--user", "ada") == ["4", "1"]
    assert numbers("--user", "ada") == ["4"]
    assert run("leases", "--user", "nobody").out == "No living leases; --all shows ended ones.\n"
    assert run("leases", "--user", "nobody", "--all").out == "No leases.\n"


def test_leases_for_scripts(run: Run, four: list[Lease]) -> None:
    assert json.loads(run("leases", "--user", "nobody", "--json").out) == []
    listed = json.loads(run("leases", "--all", "--json", "--user", "ada").out)
    ended = listed[-1]
    assert ended == {
        "lease_id": four[0].lease_id, "hub_id": "hub", "user": "ada", "server": "",
        "profile": "whole", "state": "ended", "unknown_since": None, "unknown_why": None,
        "slices": [four[0].slices[0].slice_id],
        "requested_at": "2026-09-01T08:00:00+00:00", "granted_at": "2026-09-01T08:00:00+00:00",
        "running_at": "2026-09-01T08:00:02+00:00", "ended_at": "2026-09-01T08:00:03+00:00",
        "finished_at": "2026-09-01T09:00:00+00:00", "finished_source": "engine",
        "reason": {"code": "exited", "values": {"exit_code": 3}},
    }  # fmt: skip
    assert listed[0]["ended_at"] is None
    assert listed[0]["reason"] is None
