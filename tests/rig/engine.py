"""A Docker engine that the tests own: started, frozen, killed and ended by process id."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import docker
import docker.errors
import psutil
from docker.types import IPAMConfig, IPAMPool

from tests.rig.blocks import Block
from tests.rig.leftovers import lock_folder, sweep, wipe

_PREFIX = "gse-"
_START_SECONDS = 60
_STOP_SECONDS = 40

# Of a data folder, what images are: the layers and the records of them.
PLANTED = ("overlay2", "image")

# Called `prestart` with the OCI state on standard input; a status other than 0 fails the start.
_HOOK = """#!/bin/sh
cat >/dev/null
exit 0
"""


def missing_for_engine() -> str | None:
    """Say in words what this machine lacks for an engine of the tests; None if nothing."""
    if os.geteuid() != 0:
        return "a Docker engine of the tests' own needs root"
    path = _environment()["PATH"]
    for program, package in (("dockerd", "docker.io"), ("ip", "iproute2")):
        if shutil.which(program, path=path) is None:
            return f"{program} is not installed (Debian package {package})"
    return None


def engine_version() -> str:
    """Return the version of the machine's dockerd, in letters that suit a file name."""
    done = subprocess.run(
        ["dockerd", "--version"], check=True, capture_output=True, text=True, env=_environment()
    )
    return re.sub(r"[^0-9A-Za-z.]+", "-", done.stdout.split()[2].rstrip(","))


def _environment(*first: Path) -> dict[str, str]:
    path = [*map(str, first), os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]
    return {**os.environ, "PATH": ":".join(path)}


class OwnedEngine:
    """One dockerd with folders, socket, bridge and subnets of its own.

    It stands beside any other engine of the machine: it never touches docker0, iptables or the
    default data folder. With ``hook`` it accepts device requests for driver ``nvidia``, as an
    engine with the NVIDIA toolkit does. Use as a context manager, or call `start` and `close`.
    """

    def __init__(
        self, *, seed: Path | None = None, hook: bool = True, live_restore: bool = False
    ) -> None:
        parent = Path(tempfile.gettempdir())
        if len(str(parent)) > 60:
            parent = Path("/tmp")  # a socket's path may have 107 characters
        sweep(parent, _PREFIX)
        self.folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        self._lock = lock_folder(self.folder)
        self.url = f"unix://{self.folder}/d.sock"
        self.log_path = self.folder / "dockerd.log"
        self._live_restore = live_restore
        self._process: subprocess.Popen[bytes] | None = None
        self._frozen = False
        self._clients: list[docker.APIClient] = []
        self._block = Block.claim()
        self._block.make_bridge()
        self._write_files(hook)
        if seed is not None:
            self._plant(seed)

    def __enter__(self) -> "OwnedEngine":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_files(self, hook: bool) -> None:
        programs = self.folder / "bin"
        programs.mkdir()
        if hook:
            path = programs / "nvidia-container-runtime-hook"
            path.write_text(_HOOK)
            path.chmod(0o755)
        # Else dockerd reads the machine's own file, whose settings may contradict our flags.
        (self.folder / "daemon.json").write_text("{}")

    def _plant(self, seed: Path) -> None:
        """Fill the data folder from a kept one: layers by hard links, for nobody writes there."""
        data = self.folder / "data"
        data.mkdir(mode=0o711)
        layers, records = PLANTED
        linked = ["cp", "-a", "--link", str(seed / layers), str(data / layers)]
        if subprocess.run(linked, check=False, capture_output=True).returncode != 0:
            # Another file system: a true copy.
            shutil.rmtree(data / layers, ignore_errors=True)
            subprocess.run(["cp", "-a", seed / layers, data / layers], check=True)
        subprocess.run(["cp", "-a", seed / records, data / records], check=True)

    # --- life -----------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """Return dockerd's process id; it must run."""
        if self._process is None:
            raise RuntimeError("the engine does not run")
        return self._process.pid

    def start(self) -> None:
        """Start dockerd and return once it answers."""
        if self._process is not None:
            raise RuntimeError("the engine runs already")
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                env=_environment(self.folder / "bin"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.kill()
            raise

    def _command(self) -> list[str]:
        flags = [
            "dockerd",
            f"--config-file={self.folder}/daemon.json",
            f"--data-root={self.folder}/data",
            f"--exec-root={self.folder}/x",
            f"--pidfile={self.folder}/d.pid",
            f"--host={self.url}",
            # Beside a containerd of the machine: a namespace of our own.
            f"--containerd-namespace=gse{self._block.number}",
            f"--containerd-plugins-namespace=gse{self._block.number}p",
            f"--bridge={self._block.bridge}",
            f"--default-address-pool=base={self._block.engine_pool},size=24",
            "--iptables=false",
            "--ip6tables=false",
            "--ip-masq=false",
            "--ip-forward=false",
            "--storage-driver=overlay2",
            "--shutdown-timeout=3",
        ]
        if self._live_restore:
            flags.append("--live-restore")
        return flags

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        process = self._process
        assert process is not None
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise RuntimeError(f"dockerd ended at once:\n{self.log_tail()}")
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(deadline - time.monotonic())
                probe.connect(self.url.removeprefix("unix://"))
                # dockerd listens before it serves: the answer comes when it is ready.
                probe.sendall(b"GET /_ping HTTP/1.0\r\nHost: engine\r\n\r\n")
                if b" 200 " in probe.recv(64):
                    return
            time.sleep(0.02)
        raise TimeoutError(f"dockerd did not answer in {_START_SECONDS} s:\n{self.log_tail()}")

    def stop(self) -> None:
        """End dockerd in order (SIGTERM); its containers end with it unless live-restore is on."""
        if self._process is None:
            return
        self.thaw()
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def kill(self) -> None:
        """End dockerd as a crash does (SIGKILL); its containers run on until the next start."""
        if self._process is None:
            return
        runtime = psutil.Process(self.pid).children()  # its containerd dies with it
        self._process.kill()
        self._process.wait()
        # A zombie counts as alive when the next dockerd looks at the pidfiles.
        _, alive = psutil.wait_procs([p for p in runtime if p.name() == "containerd"], timeout=10)
        if alive:
            (self.folder / "x/containerd/containerd.pid").unlink(missing_ok=True)
        self._process = None
        self._frozen = False

    def restart(self) -> None:
        """Stop in order if it runs, then start."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Let dockerd hang (SIGSTOP): calls get no answer until `thaw`."""
        os.kill(self.pid, signal.SIGSTOP)
        self._frozen = True

    def thaw(self) -> None:
        """Let a frozen dockerd go on; does nothing else."""
        if self._frozen and self._process is not None:
            os.kill(self.pid, signal.SIGCONT)
        self._frozen = False

    # --- use ------------------------------------------------------------------------------

    def client(self, timeout: float = 60) -> docker.APIClient:
        """Return a new client; the engine closes it at its end if the test does not."""
        client = docker.APIClient(base_url=self.url, version="auto", timeout=timeout)
        self._clients.append(client)
        return client

    def network(self, name: str) -> str:
        """Make a user network with a subnet of its own and return its gateway.

        A hub on the host listens on the gateway, and only containers of the network reach it.
        """
        subnet = self._block.take_subnet()
        gateway = str(subnet[1])
        pool = IPAMPool(subnet=str(subnet), gateway=gateway)
        with contextlib.closing(self.client()) as client:
            client.create_network(name, driver="bridge", ipam=IPAMConfig(pool_configs=[pool]))
        return gateway

    def remove_containers(self) -> None:
        """Remove every container, running or not, several at once."""
        with contextlib.closing(self.client()) as client:
            ids = [container["Id"] for container in client.containers(all=True)]

            def remove(container: str) -> None:
                with contextlib.suppress(docker.errors.NotFound):
                    client.remove_container(container, force=True, v=True)

            with ThreadPoolExecutor(max_workers=8) as pool:
                list(pool.map(remove, ids))

    def reset(self) -> None:
        """Leave the engine running and empty but for its images, whatever a test did to it."""
        self.thaw()
        if self._process is None or self._process.poll() is not None:
            self.stop()
            self.start()
        self.remove_containers()
        with contextlib.closing(self.client()) as client:
            for network in client.networks():
                if network["Name"] not in ("bridge", "host", "none"):
                    client.remove_network(network["Id"])
            for volume in client.volumes()["Volumes"] or []:
                client.remove_volume(volume["Name"], force=True)
        self._block.give_back_subnets()

    def log_tail(self, lines: int = 40) -> str:
        """Return the end of dockerd's log."""
        if not self.log_path.exists():
            return ""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def close(self) -> None:
        """End the engine and clear all it made; calling it twice does nothing."""
        if self._lock is None:
            return
        self.thaw()
        try:
            if self._process is not None:
                with contextlib.suppress(docker.errors.DockerException, OSError):
                    self.remove_containers()
            self.stop()
        finally:
            for client in self._clients:
                client.close()
            wipe(self.folder, self._block)
            self._block.release()
            os.close(self._lock)
            self._lock = None
