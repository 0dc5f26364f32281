"""The service's way in. Only the standard library is imported before the parent is watched."""

import argparse
import logging
import os
import sys

from gpuspawner.lifetime import end_with_parent


def main(argv: list[str]) -> int:
    """Run the service until it is told to end; return the exit status.

    Trouble is *degraded* in ``health`` and never an exit: the hub stops itself when a managed
    service is gone at its start (hub facts H1).
    """
    parser = argparse.ArgumentParser(prog="gpuspawner service", description=__doc__)
    parser.add_argument(
        "--external",
        action="store_true",
        help="started by a unit of the site's own, not by the hub: outlives the hub",
    )
    parser.add_argument(
        "--log-level", default="info", choices=["debug", "info", "warning", "error"]
    )
    arguments = parser.parse_args(argv)
    parent = None if arguments.external else end_with_parent()
    logging.basicConfig(
        level=arguments.log_level.upper(),
        format="[%(levelname).1s %(asctime)s gpuspawner.service] %(message)s",
    )
    from gpuspawner.service.run import run

    return run(os.environ, parent)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
