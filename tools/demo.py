"""Start the demo hub on this machine, with the best that is here, and say what that is."""

import json
import logging
import os
import socket
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import docker

from gpuspawner.domain.devices import HostId
from gpuspawner.gpus.nvml import NVMLInventory
from tools.notebook_image import build
from tools.proxy.install import ProxyError
from tools.proxy.install import command as proxy_command

HERE = Path(__file__).resolve().parent.parent
FOLDER = Path(os.environ.get("GPUSPAWNER_DEMO_FOLDER") or HERE / ".demo")
NETWORK = "gpuspawner-demo"
SUBNETS = [f"10.{second}.77.0/24" for second in (213, 117, 61)]
PORT = 8000

ACCOUNTS = """
  Log in at http://127.0.0.1:8000 with any password, as
      ada, ben   students of ML101
      cho        instructor of ML101
      admin      the operator
  The pool: http://127.0.0.1:8000/services/gpu/
  This hub has no passwords, so it listens on this machine only. Ctrl+C ends it.
"""


def main() -> int:
    """Find out what this machine has, start the hub, and wait for its end."""
    os.chdir(HERE)
    # What matters of the inventory's log is said below, in one line.
    logging.getLogger("gpuspawner").addHandler(logging.NullHandler())
    if _is_taken(PORT):
        print(f"Port {PORT} of this machine is in use; end what listens there and try again.")
        return 1
    FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)
    environment = {**os.environ, **_gpus(), **_notebooks()}
    try:
        environment["GPUSPAWNER_DEMO_PROXY"] = json.dumps(proxy_command())
    except ProxyError as error:
        print(error)
        return 1
    print(ACCOUNTS, flush=True)
    command = [sys.executable, "-m", "jupyterhub", "-f", str(HERE / "jupyterhub_config.py")]
    hub = subprocess.Popen(command, cwd=FOLDER, env=environment)
    try:
        return hub.wait()
    except KeyboardInterrupt:
        return hub.wait()


def _gpus() -> dict[str, str]:
    inventory = NVMLInventory(HostId(socket.gethostname()))
    try:
        seen = inventory.look(datetime.now(UTC))
    finally:
        inventory.close()
    if seen.devices and seen.trouble is None:
        print(f"GPUs: {len(seen.devices)} real ones, handed out whole.")
        return {"GPUSPAWNER_DEMO_SIMULATE": ""}
    print("GPUs: no NVIDIA driver answers here, so the lab is simulated (no real hardware).")
    return {"GPUSPAWNER_DEMO_SIMULATE": "mixed-lab"}


def _notebooks() -> dict[str, str]:
    """Return the settings for containers, or none where servers must be local processes."""
    try:
        client = docker.APIClient(version="auto", timeout=600, **docker.utils.kwargs_from_env())
        client.ping()
    except (docker.errors.DockerException, OSError):
        print("Notebooks: no Docker engine answers here, so they run as local processes.")
        return {}
    try:
        image = build.ensure(client, lambda line: print(f"  {line}", flush=True))
        gateway = _network(client)
    except (build.ImageError, docker.errors.DockerException, OSError) as error:
        print(f"Notebooks: local processes, because no container can be had: {error}")
        return {}
    finally:
        client.close()
    print(f"Notebooks: containers of the Docker engine, from the image {image}.")
    return {
        "GPUSPAWNER_DEMO_IMAGE": image,
        "GPUSPAWNER_DEMO_NETWORK": NETWORK,
        "GPUSPAWNER_DEMO_HUB_IP": gateway,
    }


def _network(client: docker.APIClient) -> str:
    """Return the gateway of the demo's own network, at which its containers reach the hub.

    Raises:
        OSError: the gateway is not an address of this machine (the engine is in another one).
    """
    found = client.networks(names=[f"^{NETWORK}$"])
    if not found:
        _make_network(client)
        found = client.networks(names=[f"^{NETWORK}$"])
    gateway = str(found[0]["IPAM"]["Config"][0]["Gateway"])
    with socket.socket() as probe:
        probe.bind((gateway, 0))
    return gateway


def _make_network(client: docker.APIClient) -> None:
    for subnet in SUBNETS:
        pool = docker.types.IPAMPool(subnet=subnet, gateway=subnet.replace(".0/24", ".1"))
        ipam = docker.types.IPAMConfig(pool_configs=[pool])
        try:
            client.create_network(NETWORK, driver="bridge", ipam=ipam)
        except docker.errors.APIError as error:
            if subnet == SUBNETS[-1]:
                raise
            print(f"  {subnet} is taken ({error.explanation}); trying another")
        else:
            return


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


if __name__ == "__main__":
    sys.exit(main())
