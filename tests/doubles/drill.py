"""A listener of a process's steps that kills it, slows it, makes it fail, or lets it stand.

`at` runs inside hub, agent or service (`gpuspawner.steps.HOOK_VARIABLE`) and does what a file of
orders says; `Drill` is the test's end of it: it gives orders, and reads from a trace which steps
were passed, so that a test waits for what happened and never for a while.
"""

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuspawner.ledger.errors import LedgerAwayError
from gpuspawner.steps import HOOK_VARIABLE
from tests.rig.processes import wait_for

# What each drill of `tests/e2e/test_kill_points*.py` goes through at least, by role; each holds its
# own record against this.
DRILLED = {
    "hub": {
        "engine:connect", "engine:info", "engine:inspect_image", "engine:containers",
        "engine:create_container", "engine:inspect_container", "engine:start", "engine:stop",
        "engine:remove_container", "ledger:open", "ledger:read", "ledger:publish",
        "ledger:request", "ledger:bind", "ledger:run", "ledger:end", "hub:start", "hub:stop",
    },
    "agent": {
        "engine:connect", "engine:info", "engine:inspect_image", "engine:containers",
        "engine:events", "engine:past_events", "engine:inspect_container", "engine:stop",
        "engine:remove_container", "ledger:open", "ledger:read", "ledger:observe",
        "ledger:seen-alive", "ledger:note-engine", "ledger:run", "ledger:end", "ledger:readopt",
        "ledger:report-strays", "hub:servers",
    },
    "service": {"ledger:open", "ledger:read", "hub:who"},
}  # fmt: skip

FOLDER_VARIABLE = "GPUSPAWNER_DRILL_FOLDER"
ROLE_VARIABLE = "GPUSPAWNER_DRILL_ROLE"
_STAND_SECONDS = 90

_guard = threading.Lock()
_passed: dict[str, int] = {}  # an order's id -> how often this process came by


# --- inside the process -----------------------------------------------------------------------


def at(name: str) -> None:
    """Note the step, and do what an order for it says."""
    folder, role = Path(os.environ[FOLDER_VARIABLE]), os.environ.get(ROLE_VARIABLE, "")
    with _guard:
        _write(folder / "trace", f"{role} {name}")
        order = _mine(folder, role, name)
    if order is not None:
        _obey(folder, role, order)


def _mine(folder: Path, role: str, name: str) -> dict[str, Any] | None:
    for path in sorted(folder.glob("*.order")):
        try:
            order = json.loads(path.read_text())
        except FileNotFoundError:
            continue  # withdrawn
        if (order["role"], order["name"]) != (role, name):
            continue
        _passed[path.stem] = _passed.get(path.stem, 0) + 1
        if _passed[path.stem] < order["nth"]:
            continue
        with contextlib.suppress(FileNotFoundError):
            path.rename(path.with_suffix(".taken"))  # once, whichever process comes first
            return {**order, "id": path.stem}
    return None


def _obey(folder: Path, role: str, order: Mapping[str, Any]) -> None:
    _write(folder / "done", f"{order['id']} {role}")
    match order["what"]:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "delay":
            time.sleep(order["seconds"])
        case "fail":
            raise _trouble(order["name"])
        case "stand":  # until the test lets it go on, or ends the process
            deadline = time.monotonic() + _STAND_SECONDS
            while not (folder / f"{order['id']}.go").exists() and time.monotonic() < deadline:
                time.sleep(0.02)


def _trouble(name: str) -> Exception:
    """Return what the real part's trouble looks like at this step."""
    if name.startswith("ledger:"):
        return LedgerAwayError(f"drill at {name}")
    return OSError(f"drill at {name}")


def _write(path: Path, line: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def operations(names: Iterable[str]) -> set[str]:
    """Steps without their moments."""
    return {name.rpartition(":")[0] for name in names}


# --- in the test ------------------------------------------------------------------------------


@dataclass
class Drill:
    """Orders to the processes of one site, and what they passed."""

    folder: Path
    _count: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def environment(self, role: str) -> dict[str, str]:
        """What a process needs to listen."""
        return {
            HOOK_VARIABLE: "tests.doubles.drill:at",
            FOLDER_VARIABLE: str(self.folder),
            ROLE_VARIABLE: role,
            "PYTHONFAULTHANDLER": "1",  # SIGABRT shows where its threads are
        }

    def order(self, role: str, name: str, what: str, *, nth: int = 1, seconds: float = 1) -> str:
        """Let the next process of a role that passes a step do something there, once."""
        self._count += 1
        number = f"{self._count:04d}"
        text = {"role": role, "name": name, "what": what, "nth": nth, "seconds": seconds}
        path = self.folder / f"{number}.new"
        path.write_text(json.dumps(text))
        path.rename(path.with_suffix(".order"))
        return number

    def withdraw(self, number: str) -> None:
        """Take an order back that nobody has taken yet."""
        (self.folder / f"{number}.order").unlink(missing_ok=True)

    def go_on(self, number: str) -> None:
        """Let a process go on that stands."""
        (self.folder / f"{number}.go").touch()

    def is_done(self, number: str) -> bool:
        """Whether a process has come to the order's step."""
        return any(line.split()[0] == number for line in self._lines("done"))

    def wait(self, number: str, timeout: float = 30) -> None:
        """Wait until a process has come to the order's step."""
        wait_for(f"order {number}", lambda: self.is_done(number), timeout, every=0.02)

    def trace(self, role: str, since: int = 0) -> list[str]:
        """Return the steps that processes of a role passed, in order.

        ``since`` is a `mark` from before.
        """
        lines = [line.partition(" ") for line in self._lines("trace")[since:]]
        return [name for whose, _, name in lines if whose == role]

    def mark(self) -> int:
        """Return how many steps were passed until now."""
        return len(self._lines("trace"))

    def _lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []
