"""What is answered when parts are away, and what health says of it."""

import asyncio
import threading

import pytest

from gpuspawner.ledger.store import LedgerAwayError
from tests.builders import after
from tests.service.answers import document, lab, validate

# When parts are away


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
    assert (await site.ask("api/health")).body["status"] == "ok"


async def test_a_hub_that_hangs_is_given_up_on_and_holds_nobody_else_up(site, monkeypatch):
    monkeypatch.setattr("gpuspawner.service.auth.HUB_PATIENCE_SECONDS", 0.2)
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


async def test_health_says_what_stands_against_ok(site):
    site.now[0] = after(3590 + 61)
    health = (await site.ask("api/health")).body
    assert (health["status"], health["problems"]) == ("degraded", ["agent-silent"])
    assert health["inventory"]["lab"]["age_seconds"] == 61.0
    site.service.problems.add("another-service")
    assert (await site.ask("api/health")).body["problems"] == ["agent-silent", "another-service"]


async def test_health_without_an_agent_or_a_ledger(make_site, tmp_path):
    site = await make_site(filled=False)
    assert (await site.ask("api/health")).body["problems"] == ["no-agent-yet"]


async def test_a_damaged_ledger_is_degraded_and_heals(make_site, tmp_path):
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(b"this is no database at all" * 100)
    site = await make_site(GPUSPAWNER_LEDGER_URL=f"sqlite:///{damaged}")
    health = (await site.ask("api/health")).body
    assert (health["status"], health["ledger"]) == ("degraded", "away")
    assert (await site.ask("api/me", "ada")).status == 503
    damaged.unlink()
    await site.service.pulse.look()
    assert (await site.ask("api/health")).body["ledger"] == "ok"


async def test_a_wrong_address_of_the_ledger_is_degraded(make_site):
    site = await make_site(GPUSPAWNER_LEDGER_URL="mysql://nowhere/x")
    health = (await site.ask("api/health")).body
    assert "ledger-address" in health["problems"]
    assert (await site.ask("", "ada")).status == 503


async def test_health_names_nobody_and_nothing_secret(site):
    lab(site)
    text = (await site.ask("api/health")).text
    for word in ("ada", "ben", "cho", "own", "token", "sqlite", "ledger.sqlite"):
        assert word not in text.replace('ledger":"ok', "")
