"""``gpuspawner``: one command, one module per group of verbs."""

import argparse
import os
import sys
from collections.abc import Sequence

from gpuspawner._version import __version__
from gpuspawner.agent import app as agent
from gpuspawner.cli import books, cordon, end, images, leases, status
from gpuspawner.cli.common import CommandError
from gpuspawner.ledger.store import LedgerAwayError


def make_parser() -> argparse.ArgumentParser:
    """Describe all verbs."""
    parser = argparse.ArgumentParser(
        prog="gpuspawner", description="Shared GPU notebooks for JupyterHub."
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for module in (status, leases, cordon, end, images, books):
        module.add_verbs(verbs)
    verb = verbs.add_parser("agent", help="run the agent of this GPU host")
    agent.add_arguments(verb)
    verb.set_defaults(run=agent.run)
    verb = verbs.add_parser("service", help="run the hub service 'gpu': pages and REST")
    verb.add_argument(
        "--external", action="store_true",
        help="do not end with the process that started this one (for a unit of the site's own)",
    )  # fmt: skip
    verb.add_argument("--log-level", choices=["debug", "info", "warning"], default="info")
    verb.set_defaults(run=_service)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run one verb and exit with its status: 0 done, 1 not done and why, 2 wrong usage."""
    try:
        try:
            status = _run(argv)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has gone: `gpuspawner leases | head`. What is still unwritten
        # goes nowhere, else the interpreter complains at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)


def _run(argv: Sequence[str] | None) -> int:
    arguments = make_parser().parse_args(argv)
    try:
        status: int = arguments.run(arguments)
    except (CommandError, LedgerAwayError) as error:
        print(f"gpuspawner {arguments.verb}: {error}", file=sys.stderr)
        return 1
    return status


def _service(arguments: argparse.Namespace) -> int:
    # Imported here: an agent's host needs no web server.
    from gpuspawner.service.app import main as run_service

    given = ["--log-level", arguments.log_level]
    return run_service([*given, "--external"] if arguments.external else given)
