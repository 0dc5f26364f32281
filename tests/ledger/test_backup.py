"""Copies: consistent while others write, whole before they have their name, never over another."""

import os
import shutil
import sqlite3
import stat
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from gpuspawner.broker.broker import Broker
from gpuspawner.broker.invariants import broken_promises
from gpuspawner.ledger.backup import BackupError, copy, damage
from gpuspawner.ledger.store import Ledger
from tests.builders import T0, claim, device, inventory, sharing_policy
from tests.ledger.children import PATIENCE
from tests.ledger.disks import small_disk
from tests.ledger.killed import start

pytestmark = pytest.mark.proves("R13")

Opener = Callable[..., Ledger]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def broker(sqlite_url: str, open_ledger: Opener) -> Broker:
    """A hub's books that are in use: ada holds a GPU."""
    broker = Broker(open_ledger(sqlite_url), "hub")
    broker.publish(sharing_policy(), "hub", T0)
    broker.observe(inventory(device("a"), device("b", index=1)), T0)
    broker.request(claim("ada"), T0)
    return broker


def people(file: Path) -> list[str]:
    ledger = Ledger(f"sqlite:///{file}", read_only=True)
    try:
        with ledger.read() as books:
            assert broken_promises(ledger) == []
            return [lease.key.user for lease in books.living()]
    finally:
        ledger.close()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_copy_has_what_is_still_in_the_log(broker: Broker, file: Path, tmp_path: Path) -> None:
    before = names(tmp_path)
    target = tmp_path / "copy"
    copy(file, target, 1.0)
    assert Path(f"{file}-wal").stat().st_size > 0
    assert names(tmp_path) == before | {"copy"}  # one file, and nothing beside it
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    broker.request(claim("ben"), T0)
    assert people(target) == ["ada"]


def test_copies_are_consistent_while_others_write(sqlite_url: str, file: Path) -> None:
    process, pipe = start(sqlite_url, "busy", None)
    try:
        assert pipe.poll(PATIENCE)
        for number in range(15):
            while pipe.poll():
                pipe.recv()
            assert pipe.poll(PATIENCE), "the copies hold the writer up"
            target = file.with_name(f"copy-{number}")
            copy(file, target, 5.0)
            assert damage(target) == []
            people(target)
            target.unlink()
    finally:
        process.kill()
        process.join()
        pipe.close()


def test_another_writer_s_lock_does_not_hold_a_copy_up(broker: Broker, file: Path) -> None:
    with broker.ledger.write() as books:
        books.add_lease(claim("ben"), T0)
        copy(file, file.with_name("copy"), 0.1)
    assert people(file.with_name("copy")) == ["ada"]


def test_a_file_of_that_name_is_not_overwritten(broker: Broker, file: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    target.write_text("something dear")
    with pytest.raises(BackupError, match=r"there is a file .*copy already"):
        copy(file, target, 1.0)
    assert target.read_text() == "something dear"
    copy(file, target, 1.0, overwrite=True)
    assert people(target) == ["ada"]


@pytest.mark.parametrize("name", ["ledger.sqlite", "ledger.sqlite-wal", "link", "."])
def test_the_ledger_itself_is_no_place_for_a_copy(
    broker: Broker, file: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "link").symlink_to(file)
    with pytest.raises(BackupError, match="is no place for a copy"):
        copy(file, tmp_path / name, 1.0, overwrite=True)
    broker.request(claim("ben"), T0)
    assert people(file) == ["ada", "ben"]


def test_a_disk_that_is_too_small_keeps_nothing(broker: Broker, file: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k") as folder:
        with pytest.raises(BackupError, match="full"):
            copy(file, folder / "copy", 1.0)
        assert names(folder) == set()


@pytest.mark.parametrize("target", ["none/copy", "none"])
def test_what_cannot_be_read_or_written(file: Path, tmp_path: Path, target: str) -> None:
    with pytest.raises(BackupError, match="cannot be copied"):
        copy(file, tmp_path / target, 1.0)
    assert names(tmp_path) == set()


def test_a_damaged_ledger_is_not_copied(broker: Broker, file: Path, tmp_path: Path) -> None:
    broker.ledger.close()
    pages = file.stat().st_size // 4096
    subprocess.run(
        ["dd", "if=/dev/urandom", f"of={file}", "bs=4096", "seek=2", f"count={pages - 2}",
         "conv=notrunc"], check=True, capture_output=True,
    )  # fmt: skip
    with pytest.raises(BackupError, match="is damaged"):
        copy(file, tmp_path / "copy", 1.0)
    assert damage(file) != []
    assert "copy" not in names(tmp_path)
    file.write_bytes(b"no database " * 1000)
    with pytest.raises(BackupError, match="is damaged, or no ledger"):
        copy(file, tmp_path / "copy", 1.0)
    assert damage(file) == ["file is not a database"]


def test_a_row_that_refers_to_nothing_is_damage(broker: Broker, file: Path) -> None:
    broker.ledger.close()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("DELETE FROM leases")
        connection.commit()
    assert damage(file) == ["row 1 of holds refers to a row of leases that is not there"]


def test_a_copy_that_is_cut_off_never_has_the_name(
    broker: Broker, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", cut_off)
    before = names(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        copy(file, tmp_path / "copy", 1.0)
    assert names(tmp_path) == before


def test_a_copy_of_a_ledger_that_nobody_has_open(broker: Broker, file: Path) -> None:
    broker.ledger.close()
    shutil.copy(file, file.with_name("other"))
    copy(file.with_name("other"), file.with_name("copy"), 1.0)
    assert people(file.with_name("copy")) == ["ada"]
