"""``python -m tests.soak --minutes 60``: random faults on a real site; needs root."""

import argparse
import random
import sys

from tests.rig.engine import missing_for_engine
from tests.rig.processes import end_orphans
from tests.soak.site import open_site
from tests.soak.soak import Soak, SoakError


def main() -> int:
    """Run, and say how it went."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5, help="for how long (default: 5)")
    parser.add_argument("--seed", type=int, default=None, help="of the choices (default: any)")
    arguments = parser.parse_args()
    reason = missing_for_engine()
    if reason:
        print(reason, file=sys.stderr)
        return 2
    end_orphans()
    seed = random.SystemRandom().randrange(1_000_000)
    seed = arguments.seed if arguments.seed is not None else seed
    print(f"seed {seed}", flush=True)
    with open_site() as site:
        soak = Soak(site, seed)
        try:
            soak.run(arguments.minutes)
        except SoakError as error:
            print(error, file=sys.stderr)
            return 1
        print(soak.summary())
    return 0


if __name__ == "__main__":
    sys.exit(main())
