"""``end --force``: what it asks, what it refuses, and what is left in the books."""

import getpass
import os
import pty
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuspawner.broker.broker import Broker
from gpuspawner.catalogue import Catalogue
from gpuspawner.cli import end
from gpuspawner.domain.leases import Lease, Source, State
from gpuspawner.domain.reasons import Code, reason
from gpuspawner.domain.reconciliation import EngineState
from tests.builders import EXITED, T0, WHOLE, after, claim
from tests.cli.conftest import Ran

Run = Callable[..., Ran]
SILENT = EngineState(
    host_id="lab", engine="docker", silent_since=after(9.5), detail="connection refused"
)
FORCE = ("--force", "--note", "the host burned down")


@pytest.fixture
def lease(broker: Broker) -> Lease:
    """Of a server that ran, on an engine that is silent now."""
    made = broker.request(claim("ada", WHOLE, "lab"), T0)
    broker.bind(made, "0123456789abcdef", after(1))
    broker.run(made, after(2), after(2))
    broker.note_engine(SILENT)
    return made


def present(broker: Broker, lease: Lease) -> Lease:
    with broker.ledger.read() as books:
        found = books.lease(lease.lease_id)
    assert found is not None
    return found


@pytest.mark.proves("P2", "P3")
def test_a_forced_end_gives_back_and_says_who_and_why(
    run: Run, broker: Broker, lease: Lease
) -> None:
    uuid = lease.slices[0].uuid
    ran = run("end", "1", *FORCE, "--yes")

    assert ran == Ran(0, f"Lease 1 is ended by force. Given back: {uuid}.\n", "")
    who = getpass.getuser()
    why = reason(Code.FORCED, actor=who, note="the host burned down")
    ended = present(broker, lease)
    assert (ended.state, ended.reason, ended.finished_source, ended.finished_at) == (
        State.ENDED, why, Source.FORCED, None,
    )  # fmt: skip
    with broker.ledger.read() as books:
        assert books.holds() == []
        record = books.audit(lease.lease_id)[-1]
    assert (record["actor"], record["action"], record["reason"]) == (f"admin:{who}", "end", why)
    assert Catalogue("en").reason(why) == (
        f"{who}, an administrator, ended this session.\nTheir note: the host burned down"
    )
    assert f"管理员 {who} 结束了这个会话。" in Catalogue("zh_Hans").reason(why)


def test_what_was_already_to_end_ends_with_the_force(
    run: Run, broker: Broker, lease: Lease
) -> None:
    broker.want_end(lease.lease_id, reason(Code.STOPPED), after(3))
    assert run("end", "1", *FORCE, "--yes").status == 0
    ended = present(broker, lease).reason
    assert ended is not None
    assert ended.code is Code.FORCED


def test_without_force_it_explains_and_changes_nothing(
    run: Run, broker: Broker, lease: Lease
) -> None:
    ran = run("end", "1")
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.startswith("gpuspawner end: a server is stopped through the hub: ")
    assert "--force is for a lease whose engine is gone for good" in ran.err
    assert present(broker, lease).state is State.RUNNING


@pytest.mark.parametrize("note", [(), ("--note", ""), ("--note", "  ")])
def test_force_wants_a_note(run: Run, broker: Broker, lease: Lease, note: tuple[str, ...]) -> None:
    ran = run("end", "1", "--force", *note, "--yes")
    assert ran == Ran(
        1, "",
        "gpuspawner end: say why with --note: its owner reads it, and the audit keeps it\n",
    )  # fmt: skip
    assert present(broker, lease).state is State.RUNNING


@pytest.mark.parametrize("number", ["seven", ""])
def test_a_number_is_wanted(run: Run, broker: Broker, number: str) -> None:
    assert run("end", number, *FORCE).status == 2


def test_a_lease_that_nobody_knows(run: Run, broker: Broker) -> None:
    ran = run("end", "7", *FORCE, "--yes")
    assert ran == Ran(
        1, "", "gpuspawner end: there is no lease 7; 'gpuspawner leases' lists them\n"
    )


def test_asked_twice_it_is_as_once(run: Run, broker: Broker, lease: Lease) -> None:
    run("end", "1", *FORCE, "--yes")
    ran = run("end", "1", "--force", "--note", "again", "--yes")
    assert ran == Ran(0, "Lease 1 has ended already: Ended by the staff.\n", "")
    ended = present(broker, lease).reason
    assert ended is not None
    assert ended.values["note"] == "the host burned down"


@pytest.mark.proves("P1")
def test_what_an_engine_shows_running_is_not_ended(run: Run, broker: Broker, lease: Lease) -> None:
    """Nobody else may get its GPU while it runs; there is always another way."""
    broker.note_engine(EngineState(host_id="lab", engine="docker", answered_at=after(9.9)))
    ran = run("end", "1", *FORCE, "--yes")
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.startswith("gpuspawner end: the server of lease 1 runs, by its engine's own")
    assert "remove what runs (0123456789ab) at the engine" in ran.err
    assert present(broker, lease).state is State.RUNNING


def test_what_waits_or_starts_can_be_ended(run: Run, broker: Broker) -> None:
    starts = broker.request(claim("ada"), T0)
    assert run("end", str(starts.lease_id), *FORCE, "--yes").status == 0
    for user in ("ada", "ben"):
        broker.request(claim(user), T0)
    waits = broker.request(claim("cho", may_wait=True), T0)
    ran = run("end", str(waits.lease_id), *FORCE, "--yes")
    assert ran.out == f"Lease {waits.lease_id} is ended by force. It held nothing.\n"
    assert present(broker, waits).state is State.ENDED


def test_without_a_terminal_it_does_not_guess(run: Run, broker: Broker, lease: Lease) -> None:
    ran = run("end", "1", *FORCE)
    assert ran == Ran(
        1, "",
        "gpuspawner end: it asks first, and this is no terminal; --yes ends it without asking\n",
    )  # fmt: skip
    assert present(broker, lease).state is State.RUNNING


def test_one_that_ends_while_it_is_asked_about(
    run: Run, broker: Broker, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends_meanwhile(*_arguments: object) -> bool:
        broker.end(lease.lease_id, reason(Code.STOPPED), EXITED, after(9))
        return True

    monkeypatch.setattr(end, "_agreed", ends_meanwhile)
    assert run("end", "1", *FORCE) == Ran(0, "Lease 1 has ended meanwhile.\n", "")
    ended = present(broker, lease).reason
    assert ended == reason(Code.STOPPED)


def on_a_terminal(folder: Path, *arguments: str, answer: str) -> tuple[int, str]:
    """Run the command on a terminal of its own and answer its question."""
    ours, its = pty.openpty()
    command = [sys.executable, "-m", "gpuspawner", *arguments]
    said, answered = "", False
    with subprocess.Popen(command, cwd=folder, stdin=its, stdout=its, stderr=its) as process:
        os.close(its)
        try:
            while select.select([ours], [], [], 60)[0]:
                said += os.read(ours, 4096).decode()
                if not answered and "[y/N]" in said:
                    os.write(ours, answer.encode())
                    answered = True
        except OSError:  # it has closed its end
            pass
        finally:
            os.close(ours)
    return process.returncode, said.replace("\r\n", "\n")


ASKED = """\
Lease 1 of ada/lab, hub hub: running.
It holds: {uuid}.
It is not known since 2026-09-01 08:00:09 UTC whether its server runs: \
the engine docker of lab does not answer. It was seen running last at 2026-09-01 08:00:02 UTC.
If it runs after all, two servers may use the same GPU until an agent sees it and stops it.
End it by force? [y/N] """


@pytest.mark.parametrize("answer", ["n\n", "\n", "yesterday\n", "\x04"])
def test_on_a_terminal_it_shows_and_asks(
    broker: Broker, lease: Lease, tmp_path: Path, answer: str
) -> None:
    status, said = on_a_terminal(tmp_path, "end", "1", *FORCE, answer=answer)
    assert said.startswith(ASKED.format(uuid=lease.slices[0].uuid))
    assert said.endswith("Nothing is changed.\n")
    assert status == 1
    assert present(broker, lease).state is State.RUNNING


def test_on_a_terminal_it_ends_when_told_so(broker: Broker, lease: Lease, tmp_path: Path) -> None:
    status, said = on_a_terminal(tmp_path, "end", "1", *FORCE, answer="y\n")
    assert (status, said.splitlines()[-1][:27]) == (0, "Lease 1 is ended by force. ")
    assert present(broker, lease).state is State.ENDED


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (None, "No agent has ever looked whether its server runs. It was never seen running."),
        (EngineState(host_id="lab", engine="process", answered_at=after(-200)),
         "It is not known since 2026-09-01 08:00:00 UTC whether its server runs: the agent that "
         "watches process of lab says nothing."),
    ],
)  # fmt: skip
def test_it_says_what_is_known(
    run: Run, broker: Broker, state: EngineState | None, says: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    made = broker.request(claim("ada", engine="process"), T0)
    if state is not None:
        broker.note_engine(state)
    with broker.ledger.read() as books:
        knowledge = end.Knowledge(books.engine_states(), books.hosts(), after(10))
    assert says in end._about(made, knowledge)
