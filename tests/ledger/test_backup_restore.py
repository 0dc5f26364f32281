"""A backup comes back only where nobody is, whole; what was there is kept, and numbers go on."""

import os
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from gpuspawner.broker.broker import Broker
from gpuspawner.broker.invariants import broken_promises
from gpuspawner.domain.reasons import Code, RefusedError
from gpuspawner.ledger.backup import BackupError, copy
from gpuspawner.ledger.files import LedgerFile
from gpuspawner.ledger.mounts import NetworkFileSystemError
from gpuspawner.ledger.restore import SKIPPED_NUMBERS, Restorer, restore
from gpuspawner.ledger.store import Ledger
from tests.builders import T0, after, claim, device, inventory, sharing_policy
from tests.ledger.children import child, heard, hold_open
from tests.ledger.disks import dead_network

pytestmark = pytest.mark.proves("R13")

Opener = Callable[..., Ledger]
BY = Restorer(actor="admin:ada", now=after(3600))
KEPT = "ledger.sqlite.before-restore-20260901T090000Z"


class Place:
    """A ledger with yesterday's backup beside it: since then ben came, and a GPU was cordoned."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "ledger.sqlite"
        self.backup = folder / "yesterday"
        self.url = f"sqlite:///{self.file}"
        ledger = Ledger(self.url)
        broker = Broker(ledger, "hub")
        broker.publish(sharing_policy(), "hub", T0)
        broker.observe(inventory(*(device(f"d{at}", index=at) for at in range(4))), T0)
        self.ada = broker.request(claim("ada"), T0)
        broker.cordon("GPU-d3", "fan", "admin:cho", T0)
        copy(self.file, self.backup, 1.0)
        self.ben = broker.request(claim("ben"), T0)
        ledger.close()

    def restore(self) -> Path | None:
        return restore(self.backup, LedgerFile(self.file), BY, lambda _: None, busy_seconds=1.0)

    def names(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}

    def users(self, name: str = "ledger.sqlite") -> list[str]:
        ledger = Ledger(f"sqlite:///{self.folder}/{name}", read_only=True)
        try:
            with ledger.read() as books:
                return [lease.key.user for lease in books.living()]
        finally:
            ledger.close()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_yesterday_s_books_are_back_and_today_s_are_kept(place: Place, open_ledger: Opener) -> None:
    before = place.names()
    kept = place.restore()
    assert kept == place.folder / KEPT
    assert place.names() == before | {KEPT}
    assert place.users() == ["ada"]
    assert place.users(KEPT) == ["ada", "ben"]
    ledger = open_ledger(place.url)
    with ledger.read() as books:
        assert books.lease(place.ada.lease_id) == place.ada
        assert books.cordons() == {"GPU-d3": "fan"}
        policy = books.policy()
        assert policy == sharing_policy()
        last = books.audit()[-1]
    assert (last["actor"], last["action"], last["target"], last["at"], last["detail"]) == (
        "admin:ada", "restore", "yesterday", after(3600), {"kept": KEPT},
    )  # fmt: skip
    assert broken_promises(ledger) == []


def test_nothing_is_granted_before_an_agent_has_looked_again(
    place: Place, open_ledger: Opener
) -> None:
    place.restore()
    broker = Broker(open_ledger(place.url), "hub")
    with pytest.raises(RefusedError) as refused:
        broker.request(claim("cho"), after(3601))
    assert refused.value.reason.code is Code.INVENTORY_AWAY
    broker.observe(inventory(*(device(f"d{at}", index=at) for at in range(4)),
                             observed_at=after(3602)), after(3602))  # fmt: skip
    assert broker.request(claim("cho"), after(3603)).slices


def test_numbers_that_may_have_been_given_since_are_not_given_again(
    place: Place, open_ledger: Opener
) -> None:
    """Ben's container is still labelled with the numbers of his lease and grant."""
    place.restore()
    broker = Broker(open_ledger(place.url), "hub")
    broker.observe(inventory(device("d0"), device("d1", index=1), observed_at=BY.now), BY.now)
    lease = broker.request(claim("cho"), BY.now)
    assert place.ben.fence is not None
    assert lease.fence is not None
    assert lease.lease_id > place.ben.lease_id + SKIPPED_NUMBERS // 2
    assert lease.fence > place.ben.fence + SKIPPED_NUMBERS // 2


def test_numbers_are_skipped_where_no_lease_was_ever_written(
    tmp_path: Path, open_ledger: Opener
) -> None:
    url = f"sqlite:///{tmp_path}/ledger.sqlite"
    ledger = Ledger(url)
    Broker(ledger, "hub").publish(sharing_policy(), "hub", T0)
    ledger.close()
    (tmp_path / "ledger.sqlite").rename(tmp_path / "backup")
    file = LedgerFile(tmp_path / "ledger.sqlite")
    assert restore(tmp_path / "backup", file, BY, lambda _: None, busy_seconds=1.0) is None
    with open_ledger(url).write() as books:
        assert books.add_lease(claim("ada"), T0) == SKIPPED_NUMBERS + 1


def test_it_is_refused_while_another_process_has_it_open(place: Place) -> None:
    with child(hold_open, place.url) as pipe:
        assert heard(pipe) == "open"
        with pytest.raises(BackupError, match="is in use: stop the hub, the agent, the service"):
            place.restore()
        pipe.send("leave")
        assert heard(pipe) == "closed"
    assert KEPT not in place.names()
    assert place.users() == ["ada", "ben"]
    assert place.restore() is not None


def test_it_is_refused_while_this_process_has_it_open(place: Place, open_ledger: Opener) -> None:
    ledger = open_ledger(place.url)
    with ledger.read() as books:
        books.living()
    with pytest.raises(BackupError, match="is in use"):
        place.restore()
    assert KEPT not in place.names()
    with ledger.write() as books:
        books.add_lease(claim("cho"), T0)
    assert place.users() == ["ada", "ben", "cho"]


def test_what_a_killed_writer_left_in_the_log_is_kept_too(place: Place) -> None:
    with child(hold_open, place.url, kill=True, exit_code=-9) as pipe:
        assert heard(pipe) == "open"
    assert Path(f"{place.file}-wal").stat().st_size > 0
    place.restore()
    assert not Path(f"{place.file}-wal").exists()
    assert place.users(KEPT) == ["ada", "ben", "kept"]
    assert place.users() == ["ada"]


def test_a_damaged_ledger_is_replaced_and_kept_with_its_log(place: Place) -> None:
    torn, log = b"torn " * 5000, b"log " * 5000
    place.file.write_bytes(torn)
    Path(f"{place.file}-wal").write_bytes(log)
    Path(f"{place.file}-shm").write_bytes(b"shm")
    kept = place.restore()
    assert kept is not None
    assert kept.read_bytes() == torn
    assert Path(f"{kept}-wal").read_bytes() == log
    assert place.users() == ["ada"]


def test_an_empty_ledger_is_replaced_and_its_log_is_kept(place: Place) -> None:
    """SQLite takes an empty file for a new database, and throws the log away."""
    place.file.write_bytes(b"")
    Path(f"{place.file}-wal").write_bytes(b"log")
    kept = place.restore()
    assert kept is not None
    assert Path(f"{kept}-wal").read_bytes() == b"log"
    assert place.users() == ["ada"]


def test_a_removed_ledger_comes_back_and_its_log_is_kept_away_from_it(place: Place) -> None:
    place.file.unlink()
    Path(f"{place.file}-wal").write_bytes(b"log")
    assert place.restore() is None
    assert (place.folder / f"{KEPT}-wal").read_bytes() == b"log"
    assert place.users() == ["ada"]


def test_what_was_kept_can_be_put_back_itself(place: Place) -> None:
    kept = place.restore()
    assert kept is not None
    again = restore(kept, LedgerFile(place.file), BY, lambda _: None, busy_seconds=1.0)
    assert again == place.folder / f"{KEPT}-2"
    assert place.users() == ["ada", "ben"]
    assert place.users(KEPT) == ["ada", "ben"]


def test_the_file_is_its_owner_s_as_before(place: Place) -> None:
    place.file.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(place.file, 12345, 23456)
    place.restore()
    found = place.file.stat()
    assert stat.S_IMODE(found.st_mode) == 0o640
    if os.geteuid() == 0:
        assert (found.st_uid, found.st_gid) == (12345, 23456)


def make_backup(path: Path, how: str, sound: Path) -> None:
    """Write something that is no backup of ours."""
    if how == "text":
        path.write_text("no database " * 1000)
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "torn":
        content = bytearray(sound.read_bytes())
        content[4096 * 2 : -4096] = bytes(len(content) - 4096 * 3)
        path.write_bytes(content)
    elif how == "half":
        path.write_bytes(sound.read_bytes()[: sound.stat().st_size // 2])
    elif how == "another's":
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE users (name)")
            connection.commit()
    elif how == "the hub's":
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE alembic_version (version_num)")
            connection.execute("INSERT INTO alembic_version VALUES ('0001')")
            connection.commit()
    elif how == "newer":
        shutil.copy(sound, path)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("UPDATE alembic_version SET version_num = '9999'")
            connection.commit()


@pytest.mark.parametrize(
    ("how", "said"),
    [("none", "there is no file"), ("text", "is damaged, or no ledger"), ("torn", "is damaged"),
     ("half", "is damaged"), ("empty", "no ledger: the file is empty"),
     ("another's", "is no ledger"),
     ("the hub's", "is no ledger: the schema '0001' is another program's"),
     ("newer", "'9999'.*newer")],
)  # fmt: skip
def test_what_is_no_backup_of_ours_changes_nothing(place: Place, how: str, said: str) -> None:
    sound = place.backup
    place.backup = place.folder / "other"
    make_backup(place.backup, how, sound)
    before = place.file.read_bytes(), place.names()
    with pytest.raises(BackupError, match=said):
        place.restore()
    assert (place.file.read_bytes(), place.names()) == before


def test_the_ledger_is_no_backup_of_itself(place: Place) -> None:
    place.backup = place.file
    with pytest.raises(BackupError, match="is the ledger itself"):
        place.restore()


def test_books_that_are_refused_change_nothing(place: Place) -> None:
    before = place.file.read_bytes(), place.names()

    def refuse(path: Path) -> None:
        assert place.users(path.name) == ["ada"]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        restore(place.backup, LedgerFile(place.file), BY, refuse, busy_seconds=1.0)
    assert (place.file.read_bytes(), place.names()) == before


def test_a_machine_that_fails_between_the_renames_leaves_whole_books(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with child(hold_open, place.url, kill=True, exit_code=-9) as pipe:
        assert heard(pipe) == "open"

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        place.restore()
    assert place.users() == ["ada", "ben", "kept"]


def test_a_network_file_system_is_refused_here_too(place: Place, tmp_path: Path) -> None:
    with (
        dead_network(tmp_path / "far") as folder,
        pytest.raises(NetworkFileSystemError, match=r"fuse\.sshfs"),
    ):
        restore(place.backup, LedgerFile(folder / "x"), BY, lambda _: None, busy_seconds=1.0)


def test_a_reader_that_was_open_before_finds_the_new_books(
    place: Place, open_ledger: Opener
) -> None:
    """Its connections were closed, it was not: an agent that was ill for a while."""
    ledger = open_ledger(place.url)
    with ledger.read() as books:
        assert len(books.living()) == 2
    ledger.close()
    place.restore()
    with ledger.read() as books:
        assert [lease.key.user for lease in books.living()] == ["ada"]
