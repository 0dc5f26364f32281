"""A sample: what the devices of a host do, and whose that is."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from gpuspawner.broker.broker import Broker
from gpuspawner.domain.attribution import Attribution, attribute
from gpuspawner.domain.devices import HostInventory
from gpuspawner.domain.foreign import with_foreign_use
from gpuspawner.gpus.inventory import Inventory
from gpuspawner.gpus.origins import Origins


class Sampler:
    """One host's samples. Calls block: it has a thread of its own."""

    def __init__(
        self,
        broker: Broker,
        inventory: Inventory,
        origins: Origins,
        containers: Callable[[], Mapping[str, str]],
    ) -> None:
        """Take the parts; ``containers`` are those of the host by id, with their names."""
        self._broker = broker
        self._inventory = inventory
        self._origins = origins
        self._containers = containers

    def take(self, now: datetime) -> tuple[HostInventory, Attribution]:
        """Look at the devices, and at whose the processes on them are, and judge foreign use.

        Raises:
            LedgerAwayError: the leases cannot be read.
        """
        seen = self._inventory.look(now)
        pids = set(_pids(seen))
        unavailable = self._origins.unavailable() if pids else None
        origins = {} if unavailable else self._origins.of(pids)
        # After the processes: the lease of one that runs has been bound before it could begin.
        with self._broker.ledger.read() as books:
            leases = books.holding()
            before = {host.host_id: host for host in books.hosts()}.get(seen.host_id)
        found = attribute(seen, origins, leases, self._containers(), unavailable=unavailable)
        return with_foreign_use(seen, found, before), found

    def close(self) -> None:
        """Let go of the hardware."""
        self._inventory.close()


def _pids(seen: HostInventory) -> Iterable[int]:
    for device in seen.devices:
        for listed in (device.processes, *(each.processes for each in device.instances)):
            yield from (process.pid for process in listed or ())
