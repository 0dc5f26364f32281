"""A PostgreSQL server of the tests' own, thrown away at the end."""

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import psutil
import psycopg

from tests.rig.leftovers import lock_folder, sweep
from tests.rig.processes import free_port, kill_all, run_mark, wait_for

_BINARIES = Path("/usr/lib/postgresql")
_USER = "postgres"
_PREFIX = "gspg-"


def _programs() -> Path | None:
    """Return the folder of the newest server's programs."""
    found = sorted(_BINARIES.glob("*/bin/postgres"), key=lambda p: float(p.parts[-3]))
    return found[-1].parent if found else None


def missing_for_postgres() -> str | None:
    """Say in words what this machine lacks; None if nothing."""
    if _programs() is None:
        return "PostgreSQL is not installed (Debian package postgresql)"
    return None


class PostgresServer:
    """One cluster in a temporary folder, on loopback.

    Without ``fsync`` a commit survives the server's crash but not the machine's: quicker, and
    right for all tests but those that measure.
    """

    def __init__(self, *, fsync: bool = False) -> None:
        programs = _programs()
        if programs is None:
            raise RuntimeError(missing_for_postgres())
        self._programs = programs
        self._fsync = fsync
        self._numbers = itertools.count(1)
        sweep(Path(tempfile.gettempdir()), _PREFIX)
        self.folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock = lock_folder(self.folder)
        self.log_path = self.folder / "log"
        self.port = free_port()
        # The server refuses root: as root, all runs as the package's user.
        self._user = pwd.getpwnam(_USER) if os.geteuid() == 0 else None
        if self._user:
            os.chown(self.folder, self._user.pw_uid, self._user.pw_gid)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "PostgresServer":
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _identity(self) -> dict[str, object]:
        if self._user is None:
            return {}
        return {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}

    def start(self) -> None:
        """Make the cluster if there is none, start the server, return once it answers."""
        data = self.folder / "data"
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TZ": "UTC", **run_mark()}
        if not data.exists():
            subprocess.run(
                [
                    *(self._programs / "initdb", "--pgdata", data, "--username", _USER),
                    *("--auth=trust", "--encoding=UTF8", "--no-sync"),
                ],
                check=True,
                capture_output=True,
                cwd=self.folder,
                env=environment,
                **self._identity(),  # type: ignore[call-overload]
            )
        sure = "on" if self._fsync else "off"
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.folder,
            "fsync": sure,
            "full_page_writes": sure,
            "max_connections": 100,
        }
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", data]
                + [f"--{name}={value}" for name, value in settings.items()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=environment,
                start_new_session=True,
                **self._identity(),  # type: ignore[call-overload]
            )
        wait_for("PostgreSQL to answer", self._answers, timeout=30, every=0.05)

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"PostgreSQL ended at once:\n{self.log_path.read_text()}")
        with contextlib.suppress(psycopg.OperationalError), self._connect():
            return True
        return False

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user=_USER, dbname="postgres", autocommit=True
        )

    def make_database(self) -> str:
        """Make an empty database and return its SQLAlchemy URL."""
        name = f"test_{next(self._numbers)}"
        with self._connect() as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def url(self, database: str = "postgres") -> str:
        """Return the SQLAlchemy URL of a database of this server."""
        return f"postgresql+psycopg://{_USER}@127.0.0.1:{self.port}/{database}"

    def drop_database(self, url: str) -> None:
        """Drop a database that `make_database` made, whoever is still connected."""
        with self._connect() as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{url.rpartition("/")[2]}" WITH (FORCE)')

    def stop(self) -> None:
        """End the server in order, its connections with it; the data stays for `start`."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End the server as a crash does: at once, all of it."""
        self._end(signal.SIGQUIT)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            kill_all([psutil.Process(self._process.pid)])
            self._process.wait()
        self._process = None

    def close(self) -> None:
        """End the server and throw its data away."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
