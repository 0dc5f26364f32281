"""What all spawners of one hub share, and the id that tells hubs apart."""

import contextlib
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from gpuspawner import hubid
from gpuspawner.broker.invariants import broken_promises
from gpuspawner.hubid import hub_id_from_environment, read_hub_id
from gpuspawner.ledger.store import LedgerAwayError
from gpuspawner.spawners import site as spawners_site
from gpuspawner.spawners.site import site_of
from tests.builders import claim


def test_an_id_is_made_once(tmp_path: Path) -> None:
    file = tmp_path / "id"
    first = read_hub_id(file)
    assert len(first) == 8
    assert first.isalnum()
    assert first == first.lower()
    assert read_hub_id(file) == first
    assert file.read_text() == first + "\n"
    assert [path.name for path in tmp_path.iterdir()] == ["id"]  # no draft is left


def test_different_hubs_get_different_ids(tmp_path: Path) -> None:
    assert len({read_hub_id(tmp_path / str(n)) for n in range(20)}) == 20


def test_processes_that_start_at_once_agree(tmp_path: Path) -> None:
    """Hub, service and agent begin together (H1), and nobody reads a half-made file."""
    code = (
        "import sys, pathlib, gpuspawner.hubid as h; print('ready', flush=True); input(); "
        "print(*(h.read_hub_id(pathlib.Path(each)) for each in sys.argv[1:]))"
    )
    files = [tmp_path / str(n) for n in range(30)]
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", code, *map(str, files)],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                )
            )
            for _ in range(3)
        ]  # fmt: skip
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        said = [process.communicate(timeout=60)[0].split() for process in processes]
    assert said == [[file.read_text().strip() for file in files]] * 3


def test_threads_that_race_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is held between its look and its making."""
    all_have_looked = threading.Barrier(4, timeout=20)
    make = hubid._make

    def slow_make(file: Path) -> None:
        all_have_looked.wait()
        make(file)

    monkeypatch.setattr(hubid, "_make", slow_make)
    got: list[str] = []
    threads = [
        threading.Thread(target=lambda: got.append(read_hub_id(tmp_path / "id")))
        for _ in range(4)
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert got == [(tmp_path / "id").read_text().strip()] * 4


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\n", b"Hub", b"a b", b"a-b", b"x" * 17, b"\xff\xfe\x00", b"a\nb", "ä".encode()],
)
def test_garbage_is_refused_with_its_place(tmp_path: Path, garbage: bytes) -> None:
    file = tmp_path / "id"
    file.write_bytes(garbage)
    with pytest.raises(ValueError, match=r"expected a hub id of 1 to 16") as refused:
        read_hub_id(file)
    assert str(file) in str(refused.value)
    assert file.read_bytes() == garbage


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        read_hub_id(tmp_path / "nowhere" / "id")


def test_the_environment_names_the_id_or_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(hubid.HUB_ID_VARIABLE, "given")
    assert hub_id_from_environment() == "given"
    monkeypatch.delenv(hubid.HUB_ID_VARIABLE)
    monkeypatch.setenv(hubid.HUB_ID_FILE_VARIABLE, str(tmp_path / "there"))
    assert hub_id_from_environment() == read_hub_id(tmp_path / "there")
    monkeypatch.delenv(hubid.HUB_ID_FILE_VARIABLE)
    assert hub_id_from_environment() == read_hub_id(tmp_path / hubid.DEFAULT_FILE)


async def test_a_database_that_hangs_is_away_after_a_while(
    make_site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not keep the places of those who start without it."""
    site, hung = make_site(), threading.Event()
    monkeypatch.setattr(spawners_site, "BOOKS_SECONDS", 0.05)
    with pytest.raises(LedgerAwayError, match=r"did not answer in 0\.05 s"):
        await site.books_in_slot("lane", hung.wait)
    with pytest.raises(LedgerAwayError):  # the next one of its lane waits in vain as well
        await site.books_in_slot("lane", lambda: 1)
    hung.set()
    monkeypatch.setattr(spawners_site, "BOOKS_SECONDS", 30)
    assert await site.books_in_slot("lane", lambda: 2) == 2


def test_the_books_are_given_up_before_a_place_is_waited_for_in_vain() -> None:
    assert 30 < spawners_site.BOOKS_SECONDS < spawners_site.SLOT_SECONDS


def test_a_hub_has_one_site(make_site: Any) -> None:
    settings: dict[str, Any] = {}
    site = make_site()
    assert site_of(settings, lambda: site) is site
    assert site_of(settings, make_site) is site


def test_the_policy_is_published_once_and_by_the_first_request(
    make_site: Any, broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site()
    published: list[str] = []
    publish = site.broker.publish
    monkeypatch.setattr(
        site.broker, "publish", lambda *args: (published.append(args[1]), publish(*args))
    )
    with broker.ledger.read() as books:
        assert books.policy() is None

    whole = next(profile for profile in site.policy.profiles if profile.name == "h100")
    lease = site._request(claim("ada", whole))
    site._request(claim("ben", site.policy.profiles[1]))

    assert lease.slices
    assert published == ["hub"]
    with broker.ledger.read() as books:
        assert books.policy() == site.policy
        assert [each["action"] for each in books.audit() if each["target"] == "hub"] == ["publish"]
    assert broken_promises(broker.ledger) == []


def test_a_restart_with_another_policy_publishes_that(make_site: Any, broker: Any) -> None:
    make_site().publish()
    again = make_site()
    again.publish()
    changed = make_site([{"name": "cpu", "title": "CPU only"}])
    changed.publish()
    with broker.ledger.read() as books:
        assert books.policy() == changed.policy
        assert [each["action"] for each in books.audit()] == ["publish"] * 2


def test_what_could_not_be_published_is_published_later(
    make_site: Any, broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site()

    def away(*_: object) -> None:
        raise LedgerAwayError("locked")

    with monkeypatch.context() as patch:
        patch.setattr(site.broker, "publish", away)
        with pytest.raises(LedgerAwayError):
            site.publish()
    site.publish()
    with broker.ledger.read() as books:
        assert books.policy() == site.policy
