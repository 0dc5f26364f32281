"""A hub's site on a real ledger, with a simulated lab."""

import contextlib

import pytest

from gpuspawner.broker.broker import Broker
from gpuspawner.domain.devices import HostId
from gpuspawner.domain.policy import parse_policy
from gpuspawner.engines.docker.client import DockerEngine
from gpuspawner.gpus.factory import open_inventory
from gpuspawner.ledger.store import Ledger
from gpuspawner.spawners.site import Site
from tests.spawners.form_page import PROFILES, SHARED_2080, now


@pytest.fixture
def ledger(tmp_path):
    with contextlib.closing(Ledger(f"sqlite:///{tmp_path}/ledger.sqlite")) as ledger:
        yield ledger


@pytest.fixture
def broker(ledger):
    """Somebody else's view of the same books, on which the mixed lab was just observed."""
    broker = Broker(ledger, actor="agent")
    with contextlib.closing(open_inventory(HostId("lab"), "mixed-lab")) as inventory:
        broker.observe(inventory.look(now()), now())
    return broker


@pytest.fixture
def make_site(ledger):
    def make(profiles=None, devices=SHARED_2080):
        return Site(
            hub_id="hub",
            policy=parse_policy(PROFILES if profiles is None else profiles, devices),
            ledger=ledger,
            engine=DockerEngine({}),
            concurrent_starts=1,
        )

    return make
