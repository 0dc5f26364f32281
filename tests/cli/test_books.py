"""``backup``, ``restore`` and ``verify``: what they say, and that they are the documented way."""

import getpass
import json
import os
import sqlite3
import stat
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from gpuspawner.broker.broker import Broker
from gpuspawner.broker.invariants import broken_promises
from gpuspawner.cli import books as cli_books
from gpuspawner.domain.reasons import RefusedError
from gpuspawner.ledger.migrate import newest_schema
from gpuspawner.ledger.store import Ledger
from tests.builders import T0, after, claim, device, inventory, sharing_policy
from tests.cli.conftest import Ran
from tests.docs.pages import ROOT, Command, commands
from tests.docs.sessions import NOT_HERE, Session
from tests.ledger.children import child, heard, hold_open

Run = Callable[..., Ran]
VERBS = {"backup": "--force", "restore": "--force", "verify": "--json"}
NEXT = "Start the agent first: it compares the books with what runs, and no GPU is handed out "
ELSEWHERE = ["--ledger", "postgresql://ada:secret@db.example.org:5433/gpus?sslmode=require"]


@pytest.fixture
def file(ledger: Ledger, broker: Broker, tmp_path: Path) -> Path:
    """A ledger that ada holds a GPU of, and that nobody has open."""
    broker.request(claim("ada"), T0)
    ledger.close()
    return tmp_path / "gpuspawner.sqlite"


def contradict(file: Path) -> None:
    """Write past the rules: a lease holds what nobody gave it."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("DELETE FROM holds")
        connection.commit()


def mend(file: Path, sound: Path) -> None:
    subprocess.run(["cp", sound, file], check=True)


@pytest.mark.parametrize("verb", VERBS)
def test_each_has_help_and_is_in_the_list(run: Run, verb: str) -> None:
    ran = run(verb, "--help")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.startswith(f"usage: gpuspawner {verb}")
    assert VERBS[verb] in ran.out
    assert f"\n    {verb} " in run("--help").out


@pytest.mark.parametrize("arguments", [["backup", "x"], ["verify"]])
def test_a_mistyped_path_makes_nothing(run: Run, tmp_path: Path, arguments: list[str]) -> None:
    ran = run(*arguments, "--ledger", f"sqlite:///{tmp_path}/none.sqlite")
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.startswith(f"gpuspawner {arguments[0]}: there is no ledger at {tmp_path}/none")
    assert list(tmp_path.iterdir()) == []
    assert "sqlite:///FILE or postgresql://" in run(*arguments, "--ledger", "mysql://h/d").err


def test_a_backup_is_made_while_it_is_used(
    run: Run, ledger: Ledger, broker: Broker, tmp_path: Path
) -> None:
    broker.request(claim("ada"), T0)
    here, schema = tmp_path / "gpuspawner.sqlite", newest_schema()
    ran = run("backup", "copy")
    assert ran == Ran(0, f"{here} is copied to copy (schema {schema}); the copy is sound.\n", "")
    assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o600
    ran = run("backup", "copy")
    assert ran == Ran(
        1, "", "gpuspawner backup: there is a file copy already; --force replaces it\n"
    )
    broker.request(claim("ben"), T0)
    assert run("backup", "copy", "--force").status == 0
    copy = Ledger(f"sqlite:///{tmp_path}/copy", read_only=True)
    with copy.read() as found:
        assert [lease.key.user for lease in found.living()] == ["ada", "ben"]
    copy.close()


def test_a_backup_of_books_that_contradict_themselves_is_kept_and_says_so(
    run: Run, file: Path, tmp_path: Path
) -> None:
    run("backup", "sound")
    contradict(file)
    ran = run("backup", "copy")
    assert ran.status == 1
    assert ran.out.startswith("copy breaks 2 promise(s):\n  P1: ")
    assert (tmp_path / "copy").exists()
    mend(file, tmp_path / "sound")


def test_verify_looks_and_changes_nothing(run: Run, file: Path, tmp_path: Path) -> None:
    content = file.read_bytes()
    schema = newest_schema()
    assert run("verify") == Ran(0, f"{file} keeps its promises (schema {schema}).\n", "")
    assert json.loads(run("verify", "--json").out) == {
        "ledger": str(file), "schema": schema, "damage": [], "broken": [],
    }  # fmt: skip
    assert file.read_bytes() == content
    run("backup", "copy")
    assert run("verify", "copy").out == f"{tmp_path}/copy keeps its promises (schema {schema}).\n"
    assert run("verify", "none").err.startswith(
        f"gpuspawner verify: there is no ledger at {tmp_path}"
    )


def test_verify_tells_each_broken_promise(run: Run, file: Path, tmp_path: Path) -> None:
    run("backup", "sound")
    contradict(file)
    ran = run("verify")
    assert (ran.status, ran.err) == (1, "")
    head, *lines = ran.out.splitlines()
    assert head == f"{file} breaks 2 promise(s):"
    assert lines[0].startswith("  P1: device GPU-aa")
    assert lines[1] == "  P3: lease 1 (granted) and its holds differ"
    ran = run("verify", "--json")
    assert ran.status == 1
    assert len(json.loads(ran.out)["broken"]) == 2
    mend(file, tmp_path / "sound")


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"no database " * 99, "file is not a database"), (b"", "the file is empty")],
)
def test_verify_tells_of_damage(
    run: Run, file: Path, tmp_path: Path, content: bytes, said: str
) -> None:
    (tmp_path / "torn").write_bytes(content)
    ran = run("verify", "torn")
    assert ran == Ran(1, f"{tmp_path}/torn is damaged:\n  {said}\n", "")
    ran = run("verify", "torn", "--json")
    assert (ran.status, json.loads(ran.out)["damage"]) == (1, [said])
    assert (tmp_path / "torn").read_bytes() == content


def test_restore_puts_it_back_and_says_what_comes_next(
    run: Run, file: Path, ledger: Ledger, broker: Broker, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(cli_books, "now", lambda: after(60))
    run("backup", "copy")
    broker.request(claim("ben"), T0)
    ledger.close()
    ran = run("restore", "copy")
    assert (ran.status, ran.err) == (0, "")
    first, second, third = ran.out.splitlines()
    assert first == f"The books of copy are back, at {file}."
    assert second == f"What was there is kept as {file}.before-restore-20260901T080100Z."
    assert third.startswith(NEXT)
    assert run("status").out.startswith("No agent has reported a host yet.")
    with ledger.read() as found:
        assert [lease.key.user for lease in found.living()] == ["ada"]
        last = found.audit()[-1]
    assert (last["actor"], last["action"], last["target"]) == (
        f"admin:{getpass.getuser()}", "restore", "copy",
    )  # fmt: skip
    with pytest.raises(RefusedError, match="inventory-away"):
        broker.request(claim("cho"), after(61))


def test_restore_is_refused_while_the_ledger_is_in_use(run: Run, file: Path) -> None:
    run("backup", "copy")
    with child(hold_open, f"sqlite:///{file}") as pipe:
        assert heard(pipe) == "open"
        for force in ([], ["--force"]):
            ran = run("restore", "copy", *force)
            assert (ran.status, ran.out) == (1, "")
            assert ran.err.startswith(f"gpuspawner restore: {file} is in use: stop the hub")
        pipe.send("leave")
        assert heard(pipe) == "closed"
    assert run("restore", "copy").status == 0


def test_books_that_contradict_themselves_come_back_by_force_only(
    run: Run, file: Path, tmp_path: Path
) -> None:
    run("backup", "sound")
    run("backup", "copy")
    contradict(tmp_path / "copy")
    ran = run("restore", "copy")
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.startswith("gpuspawner restore: copy breaks 2 promise(s):\n  P1: ")
    assert ran.err.endswith("\n--force puts it back all the same\n")
    assert run("verify").status == 0
    assert run("restore", "copy", "--force").status == 0
    assert run("verify").status == 1
    assert run("restore", "sound").status == 0


def test_restore_wants_a_sound_backup(run: Run, file: Path, tmp_path: Path) -> None:
    assert run("restore").err == "gpuspawner restore: name the backup\n"
    assert "there is no file none" in run("restore", "none").err
    (tmp_path / "torn").write_bytes(b"no database " * 99)
    assert "torn is damaged, or no ledger" in run("restore", "torn").err
    assert list(tmp_path.glob("*before*")) == []


def test_restore_where_the_ledger_is_gone(run: Run, file: Path, tmp_path: Path) -> None:
    run("backup", "copy")
    file.unlink()
    ran = run("restore", "copy")
    assert ran.status == 0
    assert "is kept" not in ran.out
    assert run("verify").status == 0


def test_on_postgresql_its_own_means_are_named(run: Run, tmp_path: Path) -> None:
    ran = run("backup", "a file", *ELSEWHERE)
    assert (ran.status, ran.out) == (1, "")
    assert ran.err == (
        "gpuspawner backup: the books are in PostgreSQL; copy them with its own means: pg_dump "
        "--format=custom --exclude-table-data=hosts --file='a file' "
        "'postgresql://ada@db.example.org:5433/gpus?sslmode=require'\n"
    )
    ran = run("restore", "a file", *ELSEWHERE)
    assert (ran.status, ran.out) == (1, "")
    assert "pg_restore --clean --if-exists" in ran.err
    assert "secret" not in ran.err
    assert list(tmp_path.iterdir()) == []


def of_postgresql() -> tuple[Command, Command, Command]:
    page = ROOT / "docs/how-to/back-up-and-restore.md"
    dump, back, mark = (
        each for each in commands(page) if each.text in NOT_HERE and not each.by_root
    )
    return dump, back, mark


@pytest.mark.postgresql
def test_the_page_s_commands_on_postgresql(
    run: Run, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(postgres_url)
    broker = Broker(ledger, "hub")
    broker.publish(sharing_policy(), "hub", T0)
    broker.observe(inventory(device("a"), device("b", index=1)), T0)
    ada = broker.request(claim("ada"), T0)
    dump, back, mark = of_postgresql()
    session = Session(tmp_path, {"GPUSPAWNER_LEDGER_URL": postgres_url.replace("+psycopg", "")})
    session.run(dump)
    ben = broker.request(claim("ben"), T0)
    ledger.close()
    session.run(back)
    session.run(mark)
    with ledger.read() as found:
        assert [lease.key.user for lease in found.living()] == ["ada"]
        assert found.lease(ada.lease_id) == ada
        assert found.hosts() == ()
        assert found.audit()[-1]["action"] == "restore"
    with pytest.raises(RefusedError, match="inventory-away"):
        broker.request(claim("cho"), after(1))
    broker.observe(inventory(device("a"), device("b", index=1)), after(2))
    cho = broker.request(claim("cho"), after(3))
    assert ben.fence is not None
    assert cho.fence is not None
    assert cho.lease_id > ben.lease_id
    assert cho.fence > ben.fence
    assert broken_promises(ledger) == []
    ledger.close()
    monkeypatch.setenv("GPUSPAWNER_LEDGER_URL", postgres_url)
    ran = run("verify")
    assert ran.status == 0
    assert ran.out.endswith(f" keeps its promises (schema {newest_schema()}).\n")


@pytest.mark.postgresql
def test_verify_makes_no_tables_on_postgresql(run: Run, postgres_url: str) -> None:
    ran = run("verify", "--ledger", postgres_url)
    assert (ran.status, ran.out) == (1, "")
    assert "no ledger of gpuspawner" in ran.err
    engine = create_engine(postgres_url)
    with engine.connect() as connection:
        tables = connection.execute(
            text("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")
        )
        assert tables.scalar_one() == 0
    engine.dispose()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_root_restores_is_the_hub_s(run: Run, file: Path) -> None:
    run("backup", "copy")
    os.chown(file, 12345, 23456)
    assert run("restore", "copy").status == 0
    assert (file.stat().st_uid, file.stat().st_gid) == (12345, 23456)
