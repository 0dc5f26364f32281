"""What one's servers use of their GPUs: said to their owner and the staff, and to nobody else."""

import pytest

from gpuspawner.broker.broker import Broker
from gpuspawner.domain.leases import Lease
from gpuspawner.domain.pool import FRESH_FOR
from gpuspawner.domain.uses import Attribution, OwnProcess, Use
from tests.builders import ML_SHARE, inventory
from tests.service.answers import document, validate
from tests.service.conftest import Site
from tests.service.test_page import page

KERNEL = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
TRAIN = OwnProcess(
    pid=11, memory_mib=1536, busy_percent=64, command="python3", kernel_id=KERNEL
)  # fmt: skip


def uses(site: Site, lease: Lease, memory_mib: int | None = 1536, busy: int | None = 64,
         processes: tuple[OwnProcess, ...] | None = (TRAIN,), **values: str) -> None:  # fmt: skip
    """Let the agent report what a lease uses, now."""
    with site.ledger.read() as books:
        (seen,) = books.hosts()
    seen = inventory(*seen.devices, observed_at=site.now[0])
    use = Use(lease_id=lease.lease_id, uuid=lease.slices[0].uuid, memory_mib=memory_mib,
              busy_percent=busy, processes=processes)  # fmt: skip
    found = Attribution(host_id=seen.host_id, observed_at=site.now[0], uses=(use,), **values)
    Broker(site.ledger, "agent").observe(seen, site.now[0], found)


async def test_the_owner_sees_memory_load_and_which_notebook_it_is(site):
    uses(site, site.grant("ada", ML_SHARE))
    (living,) = (await site.ask("api/me", "ada")).body["living"]
    assert living["use"] == {
        "observed_at": site.now[0].strftime("%Y-%m-%dT%H:%M:%SZ"),
        "memory_mib": 1536, "busy_percent": 64,
        "processes": [
            {"memory_mib": 1536, "busy_percent": 64, "command": "python3", "kernel_id": KERNEL}
        ],
    }  # fmt: skip
    (mine,) = (await site.ask("api/me", "ada-notebook")).body["living"]
    assert mine["use"] == living["use"]
    seen = await page(site)
    assert "GPU memory in use 1.5 GiB of 4 GiB" in seen.text
    assert "Load 64 %" in seen.text


async def test_others_see_nothing_of_it(site):
    uses(site, site.grant("ada", ML_SHARE))
    for path in ("api/me", "api/leases", "api/slices", "api/devices", ""):
        text = (await site.ask(path, "ben")).text
        assert "1536" not in text, path
        assert KERNEL not in text, path
        assert "1.5 GiB of" not in text, path
    (lease,) = (await site.ask("api/leases", "admin")).body["leases"]
    assert lease["use"]["memory_mib"] == 1536


@pytest.mark.proves("P5")
async def test_what_is_not_known_is_a_dash_and_null(site):
    lease = site.grant("ada", ML_SHARE)
    assert "GPU memory in use — of 4 GiB" in (await page(site)).text
    assert (await site.ask("api/me", "ada")).body["living"][0]["use"] is None
    uses(site, lease, None, None, None)
    assert "GPU memory in use — of 4 GiB" in (await page(site)).text
    written = await document(site)
    answer = await site.ask("api/me", "ada")
    validate(written, "api/me", answer.status, answer.body)
    use = answer.body["living"][0]["use"]
    assert (use["memory_mib"], use["busy_percent"], use["processes"]) == (None, None, None)


@pytest.mark.proves("P5")
async def test_an_old_figure_is_no_figure(site):
    uses(site, site.grant("ada", ML_SHARE))
    site.now[0] += 1.1 * FRESH_FOR
    assert (await site.ask("api/me", "ada")).body["living"][0]["use"] is None
    assert "GPU memory in use — of 4 GiB" in (await page(site)).text


async def test_one_that_waits_or_has_ended_uses_nothing_to_speak_of(site):
    lease = site.grant("ada", ML_SHARE)
    uses(site, lease)
    site.end(lease)
    me = (await site.ask("api/me", "ada")).body
    assert [each["use"] for each in me["ended"]] == [None]
    assert "GPU memory in use" not in (await page(site)).text


async def test_the_staff_learns_where_it_cannot_be_told(site):
    uses(site, site.grant("ada"), None, None, None, unavailable="It sees <its own> container only.")
    said = "It cannot be told whose the processes on the GPUs of the host lab are: It sees"
    assert said in (await page(site, "admin")).text
    assert "&lt;its own&gt;" in (await site.ask("", "admin")).text
    assert "cannot be told" not in (await page(site)).text
