"""What is answered when parts are away, and what health says of it."""

import asyncio
import threading

import pytest

from gpuspawner.ledger.store import LedgerAwayError
from tests.builders import after, device, inventory
from tests.service.answers import document, lab, validate

# When parts are away


@pytest.mark.proves("R13")
async def test_without_the_ledger_it_is_503_with_a_time_to_come_back(site, monkeypatch):
    def away(*_arguments):
        raise LedgerAwayError("locked")

    monkeypatch.setattr(site.service.books, "_ask", away)
    written = await document(site)
    for path in ("api/me", "api/devices", "api/slices", "api/leases"):
        answer = await site.ask(path, "ada")
        assert (answer.status, answer.body["error"]["code"]) == (503, "ledger-away")
        assert answer.headers["Retry-After"] == "10"
        assert answer.body["error"]["retry_at"] == "2026-09-01T09:00:10Z"
        validate(written, path, 503, answer.body)


async def test_before_the_hubs_id_is_known_nobodys_leases_are_told(site):
    site.service.hub_id = None
    assert (await site.ask("api/me", "ada")).status == 503
    assert (await site.ask("", "ada")).status == 503
    assert (await site.ask("api/health")).status == 200


async def test_without_the_hub_it_is_503_and_health_still_answers(site):
    site.hub.status = 502
    answer = await site.ask("api/me", "ada")
    assert (answer.status, answer.body["error"]["code"]) == (503, "hub-away")
    assert (await site.ask("", "ada")).status == 503
    assert (await site.ask("api/health")).body["problems"] == ["hub-away"]


async def test_a_hub_that_hangs_is_given_up_on_and_holds_nobody_else_up(site):
    site.service.hub.patience_seconds = 0.2
    site.hub.hold = asyncio.Event()
    waiting = asyncio.ensure_future(site.ask("api/me", "ada"))
    assert (await site.ask("api/health")).status == 200
    assert (await waiting).body["error"]["code"] == "hub-away"


async def test_the_hub_is_asked_once_in_half_a_minute(site):
    for _ in range(3):
        await site.ask("api/me", "ada")
    assert site.hub.asked == 1
    assert site.service.auth.cache_max_age <= 60


async def test_a_ledger_that_hangs_is_given_up_on(site):
    release = threading.Event()
    site.service.books._limit_seconds = 0.1
    with pytest.raises(LedgerAwayError, match="within"):
        await site.service.books.call(release.wait)
    release.set()


# Health


def agent(age_seconds: float, state: str, since: str, **what: bool) -> dict[str, object]:
    flags = {"silent": False, "trouble": False, "simulated": True} | what
    return {"state": state, "since": since, "age_seconds": age_seconds, **flags}


async def test_health_is_as_the_document_says_and_tells_each_part(site):
    await site.ask("api/me", "ada")
    site.now[0] = after(3593.26)
    health = (await site.ask("api/health")).body
    validate(await document(site), "api/health", 200, health)
    assert health.pop("version")
    assert health == {
        "status": "ok", "ledger": "ok", "hub": "ok",
        "since": {"ledger": "2026-09-01T09:00:00Z", "hub": "2026-09-01T09:00:00Z"},
        "inventory": [agent(3.3, "ok", "2026-09-01T09:00:00Z")],
        "problems": [],
    }  # fmt: skip


async def test_health_says_what_stands_against_ok_and_since_when(site):
    site.now[0] = after(3590 + 61)
    health = (await site.ask("api/health")).body
    assert (health["status"], health["problems"]) == ("degraded", ["agent-silent"])
    since = "2026-09-01T09:00:51Z"
    assert health["inventory"] == [agent(61.0, "degraded", since, silent=True)]
    site.now[0] = after(3590 + 300)
    assert (await site.ask("api/health")).body["inventory"][0]["since"] == since
    site.service.problems.add("another-service")
    assert (await site.ask("api/health")).body["problems"] == ["agent-silent", "another-service"]


async def test_hardware_that_cannot_be_asked_is_trouble_and_goes(site):
    site.broker.observe(inventory(trouble="NVML is away", observed_at=after(3600)), after(3600))
    await site.service.pulse.look()
    health = (await site.ask("api/health")).body
    assert health["problems"] == ["hardware-trouble"]
    assert [look["state"] for look in health["inventory"]] == ["degraded"]
    assert "NVML" not in str(health)
    site.broker.observe(inventory(device("a"), observed_at=after(3610)), after(3610))
    await site.service.pulse.look()
    assert (await site.ask("api/health")).body["problems"] == []


async def test_while_the_ledger_is_away_agents_are_unknown_and_not_silent(site, monkeypatch):
    """Nobody can tell (P5): what is not known raises no alarm of its own."""

    def away(*_arguments):
        raise LedgerAwayError("locked")

    with monkeypatch.context() as broken:
        broken.setattr(site.service.books, "_ask", away)
        site.now[0] = after(3605)
        await site.service.pulse.look()
        site.now[0] = after(4000)
        health = (await site.ask("api/health")).body
    since = "2026-09-01T09:00:05Z"
    assert (health["ledger"], health["since"]["ledger"]) == ("degraded", since)
    assert health["problems"] == ["ledger-away"]
    assert health["inventory"] == [agent(410.0, "unknown", since)]
    await site.service.pulse.look()
    health = (await site.ask("api/health")).body
    assert (health["ledger"], health["problems"]) == ("ok", ["agent-silent"])
    assert health["since"]["ledger"] == "2026-09-01T09:06:40Z"


async def test_health_names_no_host(site):
    for host in ("gpu-server-7", "gpu-server-8"):
        seen = inventory(observed_at=after(3590), host_id=host)
        site.broker.observe(seen, after(3590))
    await site.service.pulse.look()
    answer = await site.ask("api/health")
    assert len(answer.body["inventory"]) == 3
    assert "server-" not in answer.text
    assert '"lab"' not in answer.text


async def test_health_without_an_agent_or_a_ledger(make_site, tmp_path):
    site = await make_site(filled=False)
    assert (await site.ask("api/health")).body["problems"] == ["no-agent-yet"]


async def test_a_damaged_ledger_is_degraded_and_heals(make_site, tmp_path):
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(b"this is no database at all" * 100)
    site = await make_site(GPUSPAWNER_LEDGER_URL=f"sqlite:///{damaged}")
    health = (await site.ask("api/health")).body
    assert (health["status"], health["ledger"]) == ("degraded", "degraded")
    assert (await site.ask("api/me", "ada")).status == 503
    damaged.unlink()
    await site.service.pulse.look()
    assert (await site.ask("api/health")).body["ledger"] == "ok"


async def test_a_wrong_address_of_the_ledger_is_degraded(make_site):
    site = await make_site(GPUSPAWNER_LEDGER_URL="mysql://nowhere/x")
    health = (await site.ask("api/health")).body
    assert "ledger-address" in health["problems"]
    assert (await site.ask("", "ada")).status == 503


@pytest.mark.proves("P9")
async def test_health_names_nobody_and_nothing_secret(site):
    lab(site)
    text = (await site.ask("api/health")).text
    for word in ("ada", "ben", "cho", '"own"', "token", "sqlite", "lab", "127.0.0.1"):
        assert word not in text
