"""``gpuspawner cordon`` and ``uncordon``: take a slice out of the pool, and put it back."""

import argparse
from typing import Any

from gpuspawner.broker.broker import Broker
from gpuspawner.cli.common import CommandError, actor, add_ledger, now, open_broker


def add_verbs(verbs: Any) -> None:
    """Add both verbs."""
    for name, text, run in (
        ("cordon", "hand a device or an instance out no more; present leases go on", _cordon),
        ("uncordon", "hand a device or an instance out again", _uncordon),
    ):
        verb = verbs.add_parser(name, help=text)
        verb.add_argument("target", help="a UUID, or its beginning if that is unambiguous")
        if name == "cordon":
            verb.add_argument("--note", default="", help="why, for people who look at the pool")
        add_ledger(verb)
        verb.set_defaults(run=run)


def _cordon(arguments: argparse.Namespace) -> int:
    with open_broker(arguments) as broker:
        target = _find(broker, arguments.target)
        broker.cordon(target, arguments.note, actor(), now())
        with broker.ledger.read() as books:
            held = [
                hold
                for hold in books.holds()
                if target in (hold.slice.device_uuid, hold.slice.uuid)
            ]
    print(f"{target} is cordoned; {len(held)} lease(s) on it go on until they end.")
    return 0


def _uncordon(arguments: argparse.Namespace) -> int:
    with open_broker(arguments) as broker:
        with broker.ledger.read() as books:
            cordoned = list(books.cordons())
        target = _only(arguments.target, cordoned, "cordoned")
        broker.uncordon(target, actor(), now())
    print(f"{target} is handed out again.")
    return 0


def _find(broker: Broker, text: str) -> str:
    with broker.ledger.read() as books:
        devices = [device for host in books.hosts() for device in host.devices]
    uuids = [str(device.uuid) for device in devices]
    uuids += [str(instance.uuid) for device in devices for instance in device.instances]
    return _only(text, uuids, "in the pool")


def _only(text: str, uuids: list[str], where: str) -> str:
    found = [uuid for uuid in uuids if uuid == text] or [
        uuid for uuid in uuids if uuid.startswith(text)
    ]
    if len(found) == 1:
        return found[0]
    known = "\n  ".join(uuids) or "(none)"
    what = "no UUID" if not found else f"{len(found)} UUIDs"
    raise CommandError(f"{what} {where} begin with {text!r}; {where} are:\n  {known}")
