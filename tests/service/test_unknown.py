"""What page and API say where it is not known what runs, or where something runs unasked."""

import re

import pytest

from gpuspawner.domain.devices import DeviceUUID
from gpuspawner.domain.leases import State
from gpuspawner.domain.reasons import Code, reason
from gpuspawner.domain.reconciliation import EngineState, Stray
from tests.builders import ML_SHARE, SMALL_MIG, WHOLE, after, claim
from tests.service.conftest import NOW, Site
from tests.service.test_page import page

SINCE = "2026-09-01T08:58:20Z"


def silent_engine(site: Site) -> None:
    """Let the engine fall silent 100 seconds ago; the agent tells."""
    for state in (
        EngineState(host_id="lab", engine="docker", answered_at=after(3500)),
        EngineState(host_id="lab", engine="docker", silent_since=after(3505), detail="/secret"),
    ):
        site.broker.note_engine(state)


def answering_engine(site: Site) -> None:
    site.broker.note_engine(EngineState(host_id="lab", engine="docker", answered_at=after(3595)))


@pytest.mark.proves("P2", "P5")
async def test_a_silent_engine_makes_no_server_gone(site: Site):
    lease = site.grant("ada")
    silent_engine(site)
    text = (await page(site)).text
    assert (
        "It is not known whether it runs: the engine has not answered since Sep 1, 2026 08:58 UTC. "
        "Nothing is lost; the GPU stays yours."
    ) in text
    assert "Default server Not known" in text
    assert "yours · Default server" in text
    assert "/hub/user/ada/" in (await page(site)).links  # it may well be reached
    assert (
        "The engine that runs the servers of the host lab has not answered for 2 minutes"
    ) in text
    assert "/secret" not in text
    with site.ledger.read() as books:
        assert [hold.lease_id for hold in books.holds()] == [lease.lease_id]


async def test_it_says_so_in_chinese(site: Site):
    site.grant("ada")
    silent_engine(site)
    text = (await page(site, **{"Accept-Language": "zh-CN"})).text
    assert "目前不知道它是否在运行：引擎自 2026年9月1日 08:58 UTC 起没有响应。" in text
    assert "主机 lab 上运行服务器的引擎已有" in text


async def test_what_starts_or_stops_keeps_its_word(site: Site):
    starts = site.broker.request(claim("ada", ML_SHARE, "new"), after(3400))
    stops = site.grant("ada", WHOLE, "old")
    site.broker.want_end(stops.lease_id, reason(Code.STOPPED), after(3501))
    silent_engine(site)
    assert starts.state is State.GRANTED
    text = (await page(site)).text
    assert "new Starting" in text
    assert "old Stopping" in text
    assert text.count("It is not known whether it runs") == 2


async def test_an_agent_that_is_away_is_said_of_each_server(site: Site):
    site.grant("ada")
    site.broker.note_engine(EngineState(host_id="lab", engine="docker", answered_at=after(3000)))
    text = (await page(site)).text
    assert "the agent of its host has not reported since Sep 1, 2026 08:50 UTC." in text
    assert "The engine that runs" not in text


async def test_a_server_that_its_engine_does_not_show(site: Site):
    site.grant("ada")  # seen running an hour ago, and never since
    answering_engine(site)
    text = (await page(site)).text
    assert "the engine has not shown it since Sep 1, 2026 08:01 UTC. The GPU stays yours." in text
    assert "If you cannot open it, tell the staff." in text


@pytest.mark.parametrize("observed", [True, False])
async def test_what_is_known_or_was_never_looked_at_alarms_nobody(site: Site, observed: bool):
    lease = site.grant("ada")
    if observed:
        answering_engine(site)
        site.broker.seen_alive([lease.lease_id], after(3590))
    text = (await page(site)).text
    assert "not known" not in text.lower()
    assert "Default server Running" in text
    (told,) = (await site.ask("api/me", "ada")).body["living"]
    assert (told["unknown_since"], told["state"]) == (None, "running")


async def test_an_engine_that_nobody_needs_is_not_spoken_of(site: Site):
    """An agent asks for Docker also where nobody ever installed it."""
    site.broker.note_engine(EngineState(host_id="lab", engine="docker", silent_since=after(5)))
    assert "The engine that runs" not in (await page(site)).text


@pytest.mark.parametrize("who", ["ada", "ada-notebook"])
async def test_me_tells_since_when(site: Site, who: str):
    site.end(site.grant("ada"))
    site.grant("ada")
    silent_engine(site)
    body = (await site.ask("api/me", who)).body
    assert [lease["unknown_since"] for lease in body["living"]] == [SINCE]
    assert {lease["unknown_since"] for lease in body["ended"]} <= {None}


async def test_leases_tell_since_when_of_those_that_hold(site: Site):
    site.end(site.grant("ada"))
    for user, profile in (("ada", WHOLE), ("ben", SMALL_MIG)):
        site.grant(user, profile)
    silent_engine(site)
    listed = (await site.ask("api/leases", "admin")).body["leases"]
    assert [(lease["user"], lease["unknown_since"]) for lease in listed] == [
        ("ben", SINCE), ("ada", SINCE), ("ada", None),
    ]  # fmt: skip


# Strays


@pytest.fixture
def stray(site: Site) -> Site:
    """A container of ben's own that uses the first GPU and the partitioned one."""
    job = Stray(
        run_id="c0ffee", name="ben-trains<b>",
        devices=(DeviceUUID("GPU-a"), DeviceUUID("GPU-m")),
    )  # fmt: skip
    site.broker.report_strays("lab", "docker", [job], NOW)
    return site


@pytest.mark.parametrize("route", ["", "api/devices", "api/slices", "api/me", "api/leases"])
async def test_only_administrators_learn_the_strays_name(stray: Site, route: str):
    for who in ("ada", "ben", "staff"):
        assert "trains" not in (await stray.ask(route, who)).text
    shown = route in ("", "api/devices", "api/slices")
    assert ("trains" in (await stray.ask(route, "admin")).text) is shown


async def test_the_page_says_it_in_plain_words(stray: Site):
    text = (await page(stray)).text
    assert len(re.findall("used by something outside this site's books(?!:)", text)) == 2
    admin = (await stray.ask("", "admin")).text
    assert "used by something outside this site&#39;s books: ben-trains&lt;b&gt;" in admin


async def test_the_api_names_the_trouble(stray: Site):
    devices = (await stray.ask("api/devices", "ada")).body["devices"]
    told = {device["uuid"]: device["unavailable"] for device in devices}
    assert told["GPU-b"] is None
    assert told["GPU-a"] == {
        "trouble": "foreign", "detail": "",
        "label": "used by something outside this site's books",
    }  # fmt: skip


async def test_a_stray_with_the_name_of_a_word_of_ours(site: Site):
    job = Stray(run_id="c0ffee", name="not-reported", devices=(DeviceUUID("GPU-a"),))
    site.broker.report_strays("lab", "docker", [job], NOW)
    (told, *_) = (await site.ask("api/devices", "admin")).body["devices"]
    assert told["unavailable"]["label"] == (
        "used by something outside this site's books: not-reported"
    )


async def test_a_forced_end_reads_well(site: Site):
    lease = site.grant("ada")
    site.broker.force_end(lease.lease_id, "the host burned down", "admin:root", after(3590))
    text = (await page(site)).text
    assert "root, an administrator, ended this session. Their note: the host burned down" in text
    chinese = (await page(site, **{"Accept-Language": "zh"})).text
    assert "管理员 root 结束了这个会话。 备注：the host burned down" in chinese
