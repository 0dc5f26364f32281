"""The options form as it is shown, on a real ledger and a simulated lab: RTX 2080 Ti twice, A100
in three instances of 2g.10gb, H100."""

import asyncio
import contextlib
import re
import time
from datetime import timedelta

import pytest

from gpuspawner.broker.broker import Broker
from gpuspawner.domain.devices import HostId
from gpuspawner.gpus.factory import open_inventory
from gpuspawner.ledger.store import Ledger
from tests.builders import device, inventory
from tests.spawners.form_page import CPU, HUGE, PAIR, SHARE, SLICE, WHOLE, now, render, take

# What is shown.


async def test_each_allowed_profile_is_a_card_in_the_sites_order(make_site, broker):
    page = await render(make_site())
    assert list(page.cards) == ["cpu", "mig", "share", "h100", "pair", "huge"]
    page = await render(make_site(), groups=())
    assert "share" not in page.cards


async def test_cards_say_what_is_free(make_site, broker):
    site = make_site()
    take(site, broker, "ben", "mig")
    take(site, broker, "cho", "share", times=3)
    cards = (await render(site)).cards
    assert "Always available" in cards["cpu"]["text"]
    assert "2 of 3 free" in cards["mig"]["text"]
    assert "1 of 4 free" in cards["share"]["text"]
    assert "1 of 1 free" in cards["h100"]["text"]
    assert "none free: 1 in use" in cards["pair"]["text"]  # its devices are shared out
    assert not any("refused" in cards[name]["text"] for name in ("cpu", "mig", "share", "h100"))


async def test_cards_say_what_one_gets(make_site, broker):
    cards = (await render(make_site())).cards
    assert "GPU share (time-sliced) · 5 GiB GPU memory · Shared with" in cards["share"]["text"]
    assert "GPU instance 2g.10gb · Hardware partition" in cards["mig"]["text"]
    assert (
        "2 whole GPUs, nobody else on them · at least 10 GiB GPU memory each"
        in cards["pair"]["text"]
    )
    assert "No GPU" in cards["cpu"]["text"]
    assert "For writing and reading." in cards["cpu"]["text"]


async def test_a_full_card_stays_selectable_and_says_what_happens(make_site, broker):
    site = make_site([CPU, SLICE, WHOLE])
    take(site, broker, "ben", "h100")
    page = await render(site, chosen={"profile": "h100"})
    card = page.cards["h100"]
    assert page.checked == ["h100"]
    assert not card["disabled"]
    assert "none free: 1 in use" in card["text"]
    refused = "Starting now would be refused; others are free: “Notebook without GPU”, “GPU slice”."
    assert refused in card["text"]
    take(site, broker, "cho", "mig", times=3)
    alone = make_site([SLICE])
    assert "try again when somebody stops a server" in (await render(alone)).cards["mig"]["text"]


async def test_a_card_whose_gpus_are_all_cordoned_stays_selectable(make_site, broker, ledger):
    with ledger.read() as books:
        (host,) = books.hosts()
    h100 = next(each for each in host.devices if "H100" in each.model)
    broker.cordon(h100.uuid, "new fan", "admin", now())
    card = (await render(make_site([WHOLE]))).cards["h100"]
    assert "none free: 1 unavailable" in card["text"]
    assert "the staff can see why" in card["text"]
    assert not card["disabled"]


async def test_what_cannot_work_is_disabled_with_the_reason(make_site, broker):
    page = await render(make_site(devices=[]), chosen={"profile": "huge"})
    assert page.cards["huge"]["disabled"]
    assert "None of the 4 GPUs here fits “A huge GPU”" in page.cards["huge"]["text"]
    assert "no GPU here fits" in page.cards["share"]["text"]
    assert page.checked == ["cpu"]


async def test_shares_of_real_gpus_are_disabled_until_their_cap_is_proven(make_site, ledger):
    real = inventory(device("t4"), simulated=False, observed_at=now())
    Broker(ledger, actor="agent").observe(real, now())
    page = await render(make_site([CPU, SHARE], [{"modes": ["time-sliced"]}]))
    assert page.cards["share"]["disabled"]
    assert "nothing there enforces the memory limit" in page.cards["share"]["text"]
    assert "Simulated" not in page.said


async def test_simulated_gpus_are_named_as_such(make_site, broker):
    page = await render(make_site())
    assert page.said.count("Simulated GPUs: no real hardware is behind these") == 1


async def test_all_profiles_disabled_leaves_nothing_checked(make_site, broker):
    page = await render(make_site([HUGE]))
    assert page.checked == []


async def test_nobody_without_profiles_is_left_alone(make_site, broker):
    page = await render(make_site([SHARE]), groups=())
    assert "ask the staff to add you to a group" in page.said
    assert not page.cards


async def test_a_silent_agent_is_told_and_does_not_disable(make_site, ledger):
    with contextlib.closing(open_inventory(HostId("lab"), "mixed-lab")) as inventory:
        Broker(ledger, actor="agent").observe(inventory.look(now() - timedelta(minutes=9)), now())
    card = (await render(make_site())).cards["share"]
    assert "the last report about the GPUs is from" in card["text"]
    assert not card["disabled"]


async def test_before_the_first_report_all_can_be_chosen(make_site, ledger):
    page = await render(make_site())
    assert "no report about the GPUs has come yet" in page.said
    assert not any(card["disabled"] for card in page.cards.values())


async def test_chinese(make_site, broker):
    site = make_site([CPU, WHOLE, SLICE, PAIR, HUGE])
    take(site, broker, "ben", "h100")
    page = await render(site, locale="zh_Hans", images=["torch", "jax"])
    assert page.all("div")[0]["lang"] == "zh-Hans"
    titles = [each["title"] for each in (CPU, WHOLE, SLICE, PAIR, HUGE)]
    rest = re.sub("|".join([*titles, "For writing and reading."]), "", page.said)
    assert set(re.findall(r"[A-Za-z]{2,}", rest)) <= {"GPU", "GiB", "GB", "gb", "torch", "jax"}


async def test_the_profile_that_is_ours_is_translated(make_site):
    page = await render(make_site([]), locale="zh_Hans")
    assert "CPU only" not in page.said
    assert page.checked == ["cpu"]


# When the ledger does not answer.


async def test_without_ledger_cards_are_shown_without_counts(make_site, tmp_path, caplog):
    site = make_site()
    site.broker = Broker(Ledger(f"sqlite:///{tmp_path}/no/such/folder/x.sqlite"), actor="hub")
    page = await render(site)
    assert next(iter(page.cards)) == "cpu"
    assert page.said.count("free is not known right now") == 1
    assert not re.search(r"\d of \d", page.said)
    assert not any(card["disabled"] for card in page.cards.values())
    assert "no free counts" in caplog.text


@pytest.mark.proves("P7")
async def test_a_slow_ledger_delays_nobody(make_site, broker, monkeypatch):
    site, read = make_site(), Ledger.read

    def slow_read(ledger):
        time.sleep(1.2)
        return read(ledger)

    monkeypatch.setattr(Ledger, "read", slow_read)
    lags, started = [], time.monotonic()

    async def watch_the_loop():
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            lags.append(time.monotonic() - before - 0.01)

    watcher = asyncio.create_task(watch_the_loop())
    pages = await asyncio.gather(*(render(site) for _ in range(5)))
    assert time.monotonic() - started < 0.9
    watcher.cancel()
    assert max(lags) < 0.2
    assert all("free is not known right now" in page.said for page in pages)
    monkeypatch.undo()
    await asyncio.sleep(1.0)  # the four that nobody waits for did not ask the ledger
    assert "2 of 2 free" not in (page := await render(site)).said
    assert "3 of 3 free" in page.said


async def test_who_has_no_gpu_profile_needs_no_ledger(make_site, ledger, monkeypatch):
    monkeypatch.setattr(Ledger, "read", lambda _: pytest.fail("asked"))
    page = await render(make_site([CPU]))
    assert "not known" not in page.said
    assert page.checked == ["cpu"]
