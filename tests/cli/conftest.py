"""A command line on a real ledger, at a time that stands still."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from gpuspawner.broker.broker import Broker
from gpuspawner.broker.invariants import broken_promises
from gpuspawner.cli import cordon, end, leases, status
from gpuspawner.cli.main import main
from gpuspawner.domain.devices import Load, Trouble, Unavailable
from gpuspawner.domain.reconciliation import EngineState
from gpuspawner.ledger.store import Ledger
from tests.builders import T0, after, device, inventory, mig_device, sharing_policy


class Ran(NamedTuple):
    """What a command came to."""

    status: int
    out: str
    err: str


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Ran]:
    """Run ``gpuspawner`` with arguments, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("GPUSPAWNER_LEDGER_URL", raising=False)
    for module in (status, cordon, leases, end):
        monkeypatch.setattr(module, "now", lambda: after(10))

    def call(*arguments: str) -> Ran:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        said = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return Ran(code, said.out, said.err)

    return call


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """The ledger that stands in that folder."""
    with ExitStack() as stack:
        ledger = Ledger(f"sqlite:///{tmp_path}/gpuspawner.sqlite")
        stack.callback(ledger.close)
        yield ledger
        assert broken_promises(ledger) == []


@pytest.fixture
def broker(ledger: Ledger) -> Broker:
    """A pool: two cards, one of them busy; a sick one; and a partitioned one."""
    broker = Broker(ledger, "hub")
    broker.publish(sharing_policy(), "hub", T0)
    busy = Load(used_mib=3000, busy_percent=97)
    sick = Unavailable(trouble=Trouble.SICK, detail="XID 79")
    broker.observe(
        inventory(
            device("aa11"),
            device("aa22", index=1, load=busy, memory_mib=None),
            replace(device("bb33", index=2), unavailable=sick),
            mig_device("cc44", 5, 10, index=3, load=Load()),
        ),
        T0,
    )
    broker.note_engine(EngineState(host_id="lab", engine="docker", answered_at=after(9)))
    return broker
