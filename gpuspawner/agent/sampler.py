"""A sample: what the devices of a host do, and whose that is."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from gpuspawner.broker.broker import Broker
from gpuspawner.domain.attribution import Neighbour, attribute
from gpuspawner.domain.devices import DeviceUUID, HostInventory
from gpuspawner.domain.foreign import foreign_use, known_of, with_foreign_use
from gpuspawner.domain.uses import Attribution
from gpuspawner.gpus.inventory import Inventory
from gpuspawner.gpus.origins import Origins


class Sampler:
    """One host's samples. Calls block: it has a thread of its own."""

    def __init__(
        self,
        broker: Broker,
        inventory: Inventory,
        origins: Origins,
        containers: Callable[[], Mapping[str, Neighbour]],
    ) -> None:
        """Take the parts; ``containers`` are those of the host by id."""
        self._broker = broker
        self._inventory = inventory
        self._origins = origins
        self._containers = containers
        self._earlier: Attribution | None = None
        self._foreign: Mapping[DeviceUUID, str] | None = None  # None: not read yet

    def take(self, now: datetime) -> tuple[HostInventory, Attribution]:
        """Look at the devices, and at whose the processes on them are, and judge foreign use.

        Raises:
            LedgerAwayError: the leases cannot be read.
        """
        begun = self._origins.ticks()
        seen = self._inventory.look(now)
        pids = set(_pids(seen))
        # A driver that hides processes lists none; the simulated one hides nothing.
        must_see = bool(pids) or not seen.simulated
        unavailable = self._origins.unavailable() if must_see else None
        origins = {} if unavailable else self._origins.of(pids, not_after=begun)
        # After the processes: the lease of one that runs has been bound before it could begin.
        with self._broker.ledger.read() as books:
            leases = books.holding()
            if self._foreign is None:
                before = {host.host_id: host for host in books.hosts()}.get(seen.host_id)
                self._foreign = {} if before is None else known_of(before)
        found = attribute(seen, origins, leases, self._containers(), unavailable=unavailable)
        self._foreign = foreign_use(found, self._earlier, self._foreign)
        self._earlier = found
        return with_foreign_use(seen, self._foreign), found

    def close(self) -> None:
        """Let go of the hardware."""
        self._inventory.close()


def _pids(seen: HostInventory) -> Iterable[int]:
    for device in seen.devices:
        for listed in (device.processes, *(each.processes for each in device.instances)):
            yield from (process.pid for process in listed or ())
