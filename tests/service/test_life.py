"""How the service lives: it ends with its hub, waits for its port, and runs once (hub facts H1)."""

import asyncio
import socket
import stat
from itertools import islice

import pytest

from gpuspawner.lifetime import FileLock, Parent
from gpuspawner.service import life
from gpuspawner.service.life import backoff, until_done, wait_gone
from gpuspawner.service.run import Running, kept_secret, make_service
from gpuspawner.service.settings import settings_from


async def test_it_notices_when_its_parent_is_another():
    pids = iter([7, 7, 1])
    await wait_gone(Parent(7, lambda: next(pids)), every_seconds=0)


def test_waits_double_up_to_half_a_minute():
    assert list(islice(backoff(1), 7)) == [1, 2, 4, 8, 16, 30, 30]


async def test_an_attempt_is_repeated_until_it_works_and_the_log_says_so(caplog):
    answers = iter(["no", "no", None])

    async def attempt():
        return next(answers)

    await until_done("listening", attempt, first_seconds=0)
    said = [record.getMessage() for record in caplog.records]
    assert said == ["listening: no; trying again until it works", "listening: done at attempt 3"]


def test_one_lock_has_one_holder(tmp_path):
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert first.take()
    assert first.take()
    assert not second.take()
    first.close()
    assert second.take()
    second.close()
    assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o600


def test_a_lock_where_nothing_can_be_written_says_so(tmp_path):
    with pytest.raises(OSError, match="lock"):
        FileLock(tmp_path / "no-folder" / "lock").take()


def test_the_cookie_secret_is_made_once_and_its_owners_only(tmp_path):
    path = tmp_path / "secret"
    first = kept_secret(path)
    assert len(first) >= 32
    assert kept_secret(path) == first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("spoil", ["mode", "short"])
def test_a_secret_that_others_could_read_or_that_is_cut_is_replaced(tmp_path, spoil):
    path = tmp_path / "secret"
    first = kept_secret(path)
    if spoil == "mode":
        path.chmod(0o644)
    else:
        path.write_bytes(b"")
    assert kept_secret(path) != first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


# Settings


def test_it_listens_on_loopback_and_where_notebooks_are():
    settings = settings_from(
        {
            "JUPYTERHUB_SERVICE_URL": "http://127.0.0.1:9000",
            "GPUSPAWNER_SERVICE_ADDRESSES": "172.30.0.1, ,127.0.0.1,hub",
        },
        None,
    )
    assert settings.port == 9000
    assert settings.addresses == ("127.0.0.1", "172.30.0.1", "hub")


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "[::]", "*"])
def test_a_wildcard_is_never_listened_on(address):
    settings = settings_from({"GPUSPAWNER_SERVICE_ADDRESSES": address}, None)
    assert settings.addresses == ("127.0.0.1",)
    assert settings.refused == (address,)


@pytest.mark.parametrize("address", ["0", "0x0", "0.0"])
def test_a_wildcard_by_another_spelling_is_refused_when_it_is_bound(address):
    with pytest.raises(OSError, match="wildcard"):
        life.bind(address, 0)


@pytest.mark.parametrize(
    ("given", "prefix", "hub_url"),
    [
        ({}, "/services/gpu/", "/hub/"),
        ({"JUPYTERHUB_BASE_URL": "/a/b/"}, "/a/b/services/gpu/", "/a/b/hub/"),
        ({"JUPYTERHUB_BASE_URL": "a"}, "/a/services/gpu/", "/a/hub/"),
        (
            {"JUPYTERHUB_HOST": "https://x.example", "JUPYTERHUB_SERVICE_PREFIX": "/services/gpu"},
            "/services/gpu/",
            "https://x.example/hub/",
        ),
    ],
)
def test_links_follow_the_hubs_address(given, prefix, hub_url):
    settings = settings_from(given, None)
    assert (settings.prefix, settings.hub_url) == (prefix, hub_url)
    assert settings.spawn_url == f"{hub_url}spawn"


# At work


async def running(tmp_path, port, **environment):
    environment = {
        "GPUSPAWNER_LEDGER_URL": f"sqlite:///{tmp_path}/ledger.sqlite",
        "GPUSPAWNER_HUB_ID": "hub",
        "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{port}",
        **environment,
    }
    service = make_service(environment)
    work = Running(service)
    return service, work, work.start()


async def end(work, tasks):
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await work.close()


async def eventually(look):
    async with asyncio.timeout(20):
        while not look():  # noqa: ASYNC110 - what is looked at sends no event
            await asyncio.sleep(0.01)


@pytest.fixture
def quick(monkeypatch):
    """Try again at once."""
    monkeypatch.setattr(life, "backoff", lambda *_: iter(lambda: 0.02, None))


def taken_port():
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    return taken, taken.getsockname()[1]


async def test_a_busy_port_is_waited_for(tmp_path, quick, caplog):
    taken, port = taken_port()
    service, work, tasks = await running(tmp_path, port)
    try:
        await eventually(lambda: "taken by another program" in caplog.text)
        assert "not-listening:loopback" in service.problems
        taken.close()
        await eventually(lambda: "not-listening:loopback" not in service.problems)
        socket.create_connection(("127.0.0.1", port), 5).close()
    finally:
        await end(work, tasks)


async def test_an_address_that_is_not_there_holds_nothing_else_up(tmp_path, quick):
    taken, port = taken_port()
    taken.close()
    service, work, tasks = await running(tmp_path, port, GPUSPAWNER_SERVICE_ADDRESSES="192.0.2.1")
    try:
        await eventually(work.locked.is_set)
        assert service.problems == {"not-listening:notebooks"}
    finally:
        await end(work, tasks)


async def test_a_second_service_of_one_hub_waits_for_the_first(tmp_path, quick, caplog):
    ports = [taken_port() for _ in range(2)]
    for taken, _ in ports:
        taken.close()
    first = await running(tmp_path, ports[0][1])
    await eventually(first[1].locked.is_set)
    second = await running(tmp_path, ports[1][1])
    try:
        await eventually(lambda: "another service of this hub runs already" in caplog.text)
        assert "another-service" in second[0].problems
        assert not second[1].locked.is_set()
        await end(*first[1:])
        await eventually(second[1].locked.is_set)
        assert "another-service" not in second[0].problems
    finally:
        await end(*second[1:])


async def test_services_of_two_hubs_on_one_ledger_do_not_mind_each_other(tmp_path, quick):
    ports = [taken_port() for _ in range(2)]
    for taken, _ in ports:
        taken.close()
    first = await running(tmp_path, ports[0][1])
    second = await running(tmp_path, ports[1][1], GPUSPAWNER_HUB_ID="other")
    try:
        await eventually(lambda: first[1].locked.is_set() and second[1].locked.is_set())
    finally:
        await end(*first[1:])
        await end(*second[1:])


async def test_a_hub_id_that_cannot_be_read_is_degraded_until_it_can(tmp_path, quick):
    file = tmp_path / "hub_id"
    file.write_text("not an id!")
    taken, port = taken_port()
    taken.close()
    service, work, tasks = await running(
        tmp_path, port, GPUSPAWNER_HUB_ID="", GPUSPAWNER_HUB_ID_FILE=str(file)
    )
    try:
        await eventually(lambda: service.pulse.ledger.state == "ok")
        assert "hub-id-unknown" in service.problems
        file.write_text("hub7")
        await eventually(lambda: service.hub_id == "hub7")
        await eventually(lambda: not service.problems)
    finally:
        await end(work, tasks)


async def test_where_nothing_can_be_kept_log_ins_still_work(tmp_path, quick):
    folder = tmp_path / "sub"
    folder.mkdir()
    (folder / "gpuspawner_service_cookie_secret").mkdir()
    taken, port = taken_port()
    taken.close()
    service, work, tasks = await running(
        tmp_path, port, GPUSPAWNER_LEDGER_URL=f"sqlite:///{folder}/ledger.sqlite"
    )
    try:
        await eventually(work.locked.is_set)
        assert service.problems == {"cookie-secret"}
        assert len(work.app.settings["cookie_secret"]) >= 32
    finally:
        await end(work, tasks)
