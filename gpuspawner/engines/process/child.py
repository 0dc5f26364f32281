"""A server's process from its making to its end, as its parent sees it.

Made and let go are two steps, as with a container: the books name the process before the server
in it runs. The first program is a shell that waits for one line; if we die before we write it,
the shell reads the end of the pipe and ends too, so that nothing runs that the books do not know.
"""

import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from gpuspawner.domain.leases import Evidence, Source
from gpuspawner.engines.look import EngineUnknownError, Finished, Look, Made, Running
from gpuspawner.engines.process.folders import open_log
from gpuspawner.engines.process.marks import LEADER
from gpuspawner.engines.process.table import Identity, ProcessTable

# The shell becomes the server: same number, same start time.
_WAIT: Final = f'read -r go && export {LEADER}=$$ && exec "$@" </dev/null'


class Child:
    """One process that we started. Its calls block; make them one after the other."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        log: Path,
        settings: Mapping[str, Any] | None = None,
        table: ProcessTable | None = None,
    ) -> None:
        """Make the process; the server in it does not run before `let_go`.

        Args:
            command: the server's.
            environment: all that it gets, our marks among it.
            folder: where it runs.
            log: the file that gets what it prints; an older one is emptied.
            settings: further arguments of ``subprocess.Popen``; ours win.
            table: where processes are looked up.

        Raises:
            OSError: no process could be made.
            EngineUnknownError: it cannot be seen; it was ended.
            RefusedError: the log's folder or file is not ours alone.
        """
        self._table = table or ProcessTable()
        self._evidence: Evidence | None = None
        self._was_let_go = False
        output = open_log(log)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the site's own command
                ["/bin/sh", "-c", _WAIT, "sh", *command],
                **{
                    "start_new_session": True,  # the hub's own signals are not for it
                    **(settings or {}),
                    "shell": False,
                    "env": dict(environment),
                    "cwd": folder,
                    "stdin": subprocess.PIPE,
                    "stdout": output,
                    "stderr": output,
                },
            )
        finally:
            os.close(output)
        self.identity = self._identify()

    def _identify(self) -> Identity:
        try:
            process = self._table.of_pid(self._process.pid)
        except EngineUnknownError:
            self._process.kill()
            self._process.wait()
            self._close_pipe()
            raise
        assert process is not None, "a child stays until its parent has asked how it ended"
        return process.identity

    @property
    def run_id(self) -> str:
        """Its identity as the books have it."""
        return self.identity.run_id

    def let_go(self) -> None:
        """Let the server run. One that has ended meanwhile stays ended."""
        pipe = self._process.stdin
        assert pipe is not None
        if pipe.closed:
            return
        with contextlib.suppress(BrokenPipeError):
            pipe.write(b"go\n")
            pipe.flush()
            self._was_let_go = True
        self._close_pipe()

    def look(self) -> Look:
        """Say how it is. The time of its end is when we first looked after it (no file keeps it).

        The exit code of one that a signal ended is 128 and the signal's number, as in a shell.
        """
        code = self._process.poll()
        if code is None:
            if not self._was_let_go:
                return Made(run_id=self.run_id)
            started_at = self._table.started_at(self.identity)
            return Running(run_id=self.run_id, started_at=started_at)
        self._close_pipe()
        return Finished(run_id=self.run_id, evidence=self._end(code))

    def wait(self, seconds: float = 5) -> Look:
        """Wait until it is over, if it takes no longer than that, and say how it is."""
        self._close_pipe()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.look()

    def _end(self, code: int) -> Evidence:
        if self._evidence is None:
            code = code if code >= 0 else 128 - code
            if self._was_let_go:
                self._evidence = Evidence(
                    source=Source.ENGINE, finished_at=datetime.now(UTC), exit_code=code
                )
            else:
                self._evidence = Evidence(source=Source.NEVER_RAN, exit_code=code)
        return self._evidence

    def _close_pipe(self) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
