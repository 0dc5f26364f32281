"""Steps: the named moments at which a lease's life touches engine, hub, ledger or a process.

A process may die, be slow or fail at each of them. Whoever makes such a step says so just before
and just after; then tests can stop a process at every one of them in turn, and code that adds a
step without a name fails a test. In production nobody listens.

A name is ``place:operation:moment``. What comes after is passed only when the operation did not
raise: a process that dies there has not told anybody of the answer yet.

Standard library only: every part of the product may import this.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

# For tests alone: ``module:function``, called with the name of each step.
HOOK_VARIABLE: Final = "GPUSPAWNER_STEPS_HOOK"

# Calls of docker-py by their names there; of "connect", "pull", "events" and "past_events" see
# `gpuspawner.engines.docker.client`.
ENGINE: Final = (
    "connect", "info", "containers", "events", "past_events", "inspect_container",
    "create_container", "start", "stop", "wait", "remove_container", "logs", "port",
    "exec_create", "exec_start", "inspect_image", "pull", "create_volume", "put_archive",
)  # fmt: skip
# Parts of the broker's write transactions; several may share a commit.
WRITES: Final = (
    "publish", "request", "settle", "bind", "run", "detach", "want-end", "end", "force-end",
    "cordon", "uncordon", "observe", "seen-alive", "note-engine", "report-strays", "readopt",
)  # fmt: skip
LEDGER: Final = ("open", "read")
# What the hub asks of us and we ask of the hub.
HUB: Final = ("start", "stop", "who", "servers")
PROCESS: Final = ("make", "let-go", "end")

_CALL: Final = ("before", "after")
_COMMIT: Final = ("before-commit", "after-commit")

NAMES: Final = frozenset(
    f"{place}:{operation}:{moment}"
    for place, operations, moments in (
        ("engine", ENGINE, _CALL),
        ("ledger", WRITES, _COMMIT),
        ("ledger", LEDGER, _CALL),
        ("hub", HUB, _CALL),
        ("process", PROCESS, _CALL),
    )
    for operation in operations
    for moment in moments
)


class Steps:
    """Is told of each step; this one does nothing."""

    def at(self, name: str) -> None:
        """Take note of a step. What this raises, the step raises."""

    @contextmanager
    def around(self, what: str) -> Iterator[None]:
        """Pass the step before ``place:operation``, and the one after it unless it raises."""
        self.at(f"{what}:before")
        yield
        self.at(f"{what}:after")


UNWATCHED: Final = Steps()


class HookedSteps(Steps):
    """Tells a function of each step."""

    def __init__(self, hook: Callable[[str], None]) -> None:
        """Take the function; it may raise, sleep, or end the process."""
        self._hook = hook

    def at(self, name: str) -> None:
        """Tell of a step.

        Raises:
            ValueError: it is none of `NAMES`.
            Exception: what the function raises.
        """
        if name not in NAMES:
            raise ValueError(f"{name!r} is no step: name it in gpuspawner/steps.py")
        self._hook(name)


def steps_from(environment: Mapping[str, str]) -> Steps:
    """Return who is told of a process's steps: nobody, unless a test says otherwise.

    Raises:
        ValueError: the variable names no function.
    """
    hook = environment.get(HOOK_VARIABLE)
    if not hook:
        return UNWATCHED
    module, colon, function = hook.partition(":")
    if not colon:
        raise ValueError(f"{HOOK_VARIABLE} must be module:function, got {hook!r}")
    return HookedSteps(getattr(importlib.import_module(module), function))
