"""Storage faults, for real: no grant without a record, and the same ledger heals by itself."""

import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from gpuspawner.broker.broker import Broker
from gpuspawner.broker.invariants import broken_promises
from gpuspawner.catalogue import Catalogue
from gpuspawner.domain.leases import Lease
from gpuspawner.domain.reasons import Code
from gpuspawner.ledger.errors import DamagedError, NewerSchemaError, OlderSchemaError
from gpuspawner.ledger.mounts import NetworkFileSystemError
from gpuspawner.ledger.store import Ledger, LedgerAwayError
from gpuspawner.spawners.refusals import Refusal, reason_of
from tests.builders import EXITED, T0, WANTED, claim, device, inventory, sharing_policy
from tests.ledger.disks import failing_disk, mount, small_disk

pytestmark = pytest.mark.proves("P3", "R13")

Opener = Callable[..., Ledger]


class Site:
    """A hub's books on a disk, and what it was told."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.broker = Broker(ledger, "hub")
        self.granted: list[Lease] = []
        self._held: list[Lease] = []
        self._count = 0

    def open(self) -> None:
        """Let agent and hub report."""
        self.broker.publish(sharing_policy(), "hub", T0)
        self.broker.observe(inventory(*(device(f"d{at}", index=at) for at in range(4))), T0)

    def work(self, times: int = 1) -> None:
        """Serve so many people, one after the other; each grant counts as soon as it is told."""
        for _ in range(times):
            while len(self._held) > 2:
                self.broker.end(self._held[0].lease_id, WANTED, EXITED, T0)
                del self._held[0]
            self._count += 1
            lease = self.broker.request(claim(f"user-{self._count}"), T0)
            self._held.append(lease)
            self.granted.append(lease)

    def must_be_away(self) -> LedgerAwayError:
        with pytest.raises(LedgerAwayError) as caught:
            self.work()
        return caught.value

    def must_fill(self) -> LedgerAwayError:
        with pytest.raises(LedgerAwayError) as caught:
            self.work(1000)
        return caught.value

    def check(self) -> None:
        """Whatever was told is in the books, and nothing else; a fresh look agrees."""
        fresh = Ledger(self.ledger.url.render_as_string(), busy_seconds=1.0)
        for ledger in (self.ledger, fresh):
            with ledger.read() as books:
                known = {lease.lease_id: lease for lease in books.recent(limit=10_000)}
            assert {lease.lease_id for lease in self.granted} == set(known)
            for lease in self.granted:
                assert known[lease.lease_id].fence == lease.fence
                assert known[lease.lease_id].slices == lease.slices
            assert broken_promises(ledger) == []
        fresh.close()


@contextmanager
def site_at(folder: Path) -> Iterator[Site]:
    ledger = Ledger(f"sqlite:///{folder}/gpuspawner.sqlite", busy_seconds=0.3)
    try:
        yield Site(ledger)
    finally:
        ledger.close()


def test_a_disk_that_is_full_and_then_is_not(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "500k") as folder, site_at(folder) as site:
        site.open()
        error = site.must_fill()
        assert "full" in str(error)
        assert site.granted
        for _ in range(5):  # some room may be found, for a while
            with suppress(LedgerAwayError):
                site.work(1000)
        mount("-o", "remount,size=8m", str(folder))
        site.work(5)
        site.check()


def test_a_disk_that_is_full_from_the_beginning(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "40k") as folder, site_at(folder) as site:
        with pytest.raises(LedgerAwayError, match=r"full|made"):
            site.open()
        assert list(folder.iterdir()) == []  # nothing half-made has the ledger's name
        mount("-o", "remount,size=8m", str(folder))
        site.open()
        site.work(3)
        site.check()


def test_a_disk_that_fails_under_open_files_and_is_replaced(tmp_path: Path) -> None:
    with (
        failing_disk(tmp_path / "disk", tmp_path / "image") as (folder, replace),
        site_at(folder) as site,
    ):
        site.open()
        site.work(5)
        mount("-o", "remount,abort", str(folder))
        for _ in range(3):
            site.must_be_away()
        replace()
        site.work(5)
        site.check()


def test_a_disk_that_is_read_only_when_the_ledger_is_opened(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "8m") as folder:
        with site_at(folder) as site:
            site.open()
            site.work(3)
        mount("-o", "remount,ro", str(folder))
        for _ in range(2):
            site.must_be_away()
        mount("-o", "remount,rw", str(folder))
        site.work(3)
        site.check()
        site.ledger.close()


def test_a_lock_that_another_program_holds_for_longer_than_we_wait(tmp_path: Path) -> None:
    with site_at(tmp_path) as site:
        site.open()
        site.work(3)
        with closing(sqlite3.connect(tmp_path / "gpuspawner.sqlite")) as other:
            other.isolation_level = None
            other.execute("BEGIN IMMEDIATE")
            for _ in range(2):
                assert "locked" in str(site.must_be_away())
            with site.ledger.read() as books:  # who only looks is not held up
                assert len(books.recent()) == 3
            other.execute("ROLLBACK")
        site.work(3)
        site.check()


def tear(file: Path, how: str) -> None:
    """Damage a file from outside of this process, as a disk does."""
    size = file.stat().st_size
    commands = {
        "half": ["truncate", "-s", str(size // 2), file],
        "stub": ["truncate", "-s", "100", file],
        "empty": ["truncate", "-s", "0", file],
        "head": ["dd", "if=/dev/urandom", f"of={file}", "bs=100", "count=1", "conv=notrunc"],
        "middle": ["dd", "if=/dev/urandom", f"of={file}", "bs=4096", "seek=1",
                   f"count={size // 4096 - 1}", "conv=notrunc"],
    }  # fmt: skip
    subprocess.run(commands[how], check=True, capture_output=True)


@pytest.mark.parametrize("how", ["half", "stub", "empty", "head", "middle"])
@pytest.mark.parametrize("put_back", ["in place", "renamed"])
def test_a_torn_file_is_said_to_be_damaged_and_left_as_it_is(
    tmp_path: Path, how: str, put_back: str
) -> None:
    file, sound = tmp_path / "gpuspawner.sqlite", tmp_path / "sound"
    with site_at(tmp_path) as site:
        site.open()
        site.work(5)
        site.ledger.close()  # all is in the one file
        subprocess.run(["cp", file, sound], check=True)
        tear(file, how)
        torn = file.read_bytes()
        for _ in range(3):
            said = str(site.must_be_away())
            assert "damaged" in said
            assert "gpuspawner restore" in said
        with site_at(tmp_path) as fresh:
            said = str(fresh.must_be_away())
            assert "damaged" in said
            assert "gpuspawner restore" in said
        assert file.read_bytes() == torn
        command = ["cp", sound, file] if put_back == "in place" else ["mv", sound, file]
        subprocess.run(command, check=True)
        site.work(3)
        site.check()


@pytest.mark.parametrize("how", ["half", "stub", "empty", "head", "middle"])
def test_a_file_that_is_torn_under_us_gives_no_grant_without_a_record(
    tmp_path: Path, how: str
) -> None:
    """What was told before is in the backup; what is told after, in the file that is put back."""
    file, sound = tmp_path / "gpuspawner.sqlite", tmp_path / "sound"
    with site_at(tmp_path) as site:
        site.open()
        site.work(5)
        subprocess.run(["sqlite3", file, "PRAGMA wal_checkpoint(TRUNCATE)"], check=True)
        subprocess.run(["cp", file, sound], check=True)
        tear(file, how)
        before = len(site.granted)
        site.must_be_away()
        assert len(site.granted) == before
        for name in ("-wal", "-shm"):
            Path(f"{file}{name}").unlink(missing_ok=True)
        subprocess.run(["mv", sound, file], check=True)
        site.work(3)
        site.check()


@pytest.mark.parametrize(
    "kind",
    [LedgerAwayError, DamagedError, NewerSchemaError, OlderSchemaError, NetworkFileSystemError],
)
def test_each_is_503_with_a_time_to_come_back(kind: type[LedgerAwayError]) -> None:
    why = reason_of(kind("the disk"))
    assert why is not None
    assert why.code is Code.LEDGER_AWAY
    refusal = Refusal(why, Catalogue("en"), retry_seconds=60)
    assert refusal.status_code == 503
    assert refusal.headers == {"Retry-After": "60"}
