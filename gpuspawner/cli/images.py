"""``gpuspawner images pull``: have the images before the class comes."""

import argparse
from typing import Any

from docker.errors import NotFound

from gpuspawner.cli.common import CommandError, add_ledger, open_broker
from gpuspawner.engines.docker.client import DockerEngine
from gpuspawner.engines.look import EngineError


def add_verbs(verbs: Any) -> None:
    """Add the verb."""
    group = verbs.add_parser("images", help="images of notebooks").add_subparsers(
        dest="images_verb", required=True, metavar="VERB"
    )
    verb = group.add_parser("pull", help="pull images before class, so that no start waits for one")
    verb.add_argument("images", nargs="*", help="which (default: all that the profiles name)")
    verb.add_argument("--even-if-present", action="store_true", help="look for newer ones too")
    add_ledger(verb)
    verb.set_defaults(run=_pull)


def _pull(arguments: argparse.Namespace) -> int:
    wanted = list(dict.fromkeys(arguments.images)) or _named_by_profiles(arguments)
    engine = DockerEngine()
    failed = 0
    try:
        for at, image in enumerate(wanted, start=1):
            print(f"[{at}/{len(wanted)}] {image}: ", end="", flush=True)
            try:
                print(_have(engine, image, arguments.even_if_present))
            except (EngineError, NotFound) as error:
                failed += 1
                print(f"failed: {error}")
    finally:
        engine.close()
    if failed:
        raise CommandError(f"{failed} of {len(wanted)} images could not be had")
    return 0


def _have(engine: DockerEngine, image: str, even_if_present: bool) -> str:
    if not even_if_present and engine.image(image) is not None:
        return "is here"
    last = [""]

    def tell(status: str) -> None:
        if status and status != last[0]:
            last[0] = status
            print(".", end="", flush=True)

    engine.pull(image, tell)
    return " pulled"


def _named_by_profiles(arguments: argparse.Namespace) -> list[str]:
    with open_broker(arguments) as broker, broker.ledger.read() as books:
        policy = books.policy()
    if policy is None:
        raise CommandError("the hub has not published its profiles yet; name the images")
    images = list(dict.fromkeys(i for profile in policy.profiles for i in profile.images))
    if not images:
        raise CommandError("no profile names images; name the images to pull")
    return images
