"""Address blocks, so that no two engines on a machine ever share a subnet.

A block is a /16. Holding its lock file is holding the block: the kernel drops the lock with the
process, so a block whose lock is free but whose addresses are in use is rubbish of a crashed run.
"""

import fcntl
import ipaddress
import json
import os
import subprocess
import tempfile
from pathlib import Path

_FIRST, _LAST = 64, 127  # second number of 10.x.0.0/16: where containers seldom live


def ip(*arguments: str) -> str:
    """Run `ip` and return what it printed."""
    done = subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
    return done.stdout


def _addresses() -> list[tuple[str, ipaddress.IPv4Network]]:
    """Return (interface, network) for every IPv4 address of the machine."""
    found = []
    for interface in json.loads(ip("-json", "-4", "address", "show") or "[]"):
        for address in interface.get("addr_info", []):
            network = f"{address['local']}/{address['prefixlen']}"
            found.append(
                (interface["ifname"], ipaddress.IPv4Network(network, strict=False)),
            )
    return found


def _routes() -> list[ipaddress.IPv4Network]:
    """Return the IPv4 routes of the machine, the default route left out."""
    routes = json.loads(ip("-json", "-4", "route", "show", "table", "all") or "[]")
    destinations = {route["dst"] for route in routes} - {"default"}
    return [ipaddress.IPv4Network(dst, strict=False) for dst in destinations]


class Block:
    """One /16 of addresses, held by a file lock for as long as this object is open."""

    def __init__(self, number: int, lock: int):
        self.number = number
        self.network = ipaddress.IPv4Network(f"10.{number}.0.0/16")
        self.bridge = f"gse{number}"
        self._lock = lock
        self._next = 1

    @classmethod
    def claim(cls) -> "Block":
        """Take the first block that nobody holds and the machine does not use."""
        for number in range(_FIRST, _LAST + 1):
            path = Path(tempfile.gettempdir()) / f"gpuspawner-block-{number}.lock"
            lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue  # another engine of ours lives there
            block = cls(number, lock)
            block.remove_bridges()  # of a run that crashed
            if not any(route.overlaps(block.network) for route in _routes()):
                return block
            block.release()
        raise RuntimeError("no free address block for a Docker engine of the tests (10.64/16 on)")

    def make_bridge(self) -> None:
        """Make the engine's own bridge; dockerd must neither make nor delete docker0."""
        ip("link", "add", self.bridge, "type", "bridge")
        ip("address", "add", f"10.{self.number}.0.1/24", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")

    def take_subnet(self) -> ipaddress.IPv4Network:
        """Return a /24 that this block has not given before (half is left to the engine)."""
        if self._next > 127:
            raise RuntimeError("an engine of the tests has used up its 127 subnets")
        subnet = ipaddress.IPv4Network(f"10.{self.number}.{self._next}.0/24")
        self._next += 1
        return subnet

    def give_back_subnets(self) -> None:
        """Start again with the first subnet: no network is left."""
        self._next = 1

    @property
    def engine_pool(self) -> str:
        """Return the half from which the engine itself takes subnets nobody named."""
        return f"10.{self.number}.128.0/17"

    def remove_bridges(self) -> None:
        """Delete the bridges of this block: its networks' first, the engine's own last."""
        found = [name for name, network in _addresses() if network.subnet_of(self.network)]
        if self.bridge not in found:
            return  # nothing of ours: somebody else's networks are left alone
        found.remove(self.bridge)
        for name in [*found, self.bridge]:
            subprocess.run(["ip", "link", "delete", name], check=False, timeout=30)

    def release(self) -> None:
        """Let the block go; calling it twice does nothing."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
