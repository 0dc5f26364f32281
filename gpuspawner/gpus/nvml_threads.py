"""Calls that may never come back, each in a thread that nobody has to wait for.

A call to a sick GPU can block for long or for ever (gpu mechanics 1.1), and nothing ends a thread
that sits in the driver. So it is a daemon thread, with which the interpreter can exit; the threads
of ``concurrent.futures`` are waited for at the exit.
"""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Worker(Generic[T]):
    """Does one job at a time, each in a daemon thread of its own.

    A thread costs less than a tenth of a millisecond, and none is left to be ended. Ask and take
    results in one and the same thread.

    Args:
        name: the threads' name, for a debugger.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._job: _Job[T] | None = None
        self._late = False

    @property
    def asked(self) -> bool:
        """Whether there is a job whose result was not taken yet."""
        return self._job is not None

    @property
    def busy(self) -> bool:
        """Whether the job has not come back yet."""
        return self._job is not None and not self._job.done.is_set()

    def ask(self, work: Callable[[], T]) -> None:
        """Start a job. A result that nobody took is forgotten.

        Raises:
            RuntimeError: the job before has not come back; a second one would only hang as well.
        """
        if self.busy:
            raise RuntimeError(f"expected {self._name} to be idle, but its job has not come back")
        self._job, self._late = _Job(work), False
        threading.Thread(target=self._job.run, name=self._name, daemon=True).start()

    def result(self, seconds: float) -> T:
        """Wait for the job and return its result, or raise what it raised.

        It may be asked for again after it was late: then there is no second wait.

        Raises:
            TimeoutError: it has not come back within these seconds.
        """
        job = self._job
        if job is None:
            raise RuntimeError(f"expected a job of {self._name} to have been asked for")
        if not job.done.wait(0 if self._late else max(seconds, 0)):
            self._late = True
            raise TimeoutError(f"{self._name} has not come back")
        self._job = None
        return job.take()


class _Job(Generic[T]):
    """One piece of work, and what became of it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.done = threading.Event()
        self._work = work
        self._values: list[T] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._values.append(self._work())
        except BaseException as error:  # noqa: BLE001 - raised where the result is taken
            self._error = error
        finally:
            self.done.set()

    def take(self) -> T:
        if self._error is not None:
            raise self._error
        return self._values[0]
