"""``make bench``: measure what the design promises, and say which bounds hold.

Exits with 1 when a bound is missed. Ratios come from turns in one run on one machine; nothing
else should run there meanwhile.
"""

import argparse
import sys

from bench import rules, samples, spawn
from bench.report import Row, show


def main() -> int:
    """Run the parts that were asked for and print their rows."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", help="rules, samples, spawn (default: all)")
    parser.add_argument("--alone", type=int, default=8, help="pairs of one user's spawn")
    parser.add_argument("--together", type=int, default=2, help="pairs of 20 users at once")
    parser.add_argument("--stub", action="store_true", help="a stand-in, ready at once")
    arguments = parser.parse_args()
    parts = arguments.parts or ["rules", "samples", "spawn"]
    rows: list[Row] = []
    if "rules" in parts:
        rows += [_of_rules(row) for row in rules.run()]
    if "samples" in parts:
        rows += samples.run()
    if "spawn" in parts:
        rows += spawn.run(arguments.alone, arguments.together, stub=arguments.stub)
    print(show(rows))
    return 1 if any(row.holds is False for row in rows) else 0


def _of_rules(row: rules.Row) -> Row:
    bounded = row.bound_ms is not None
    return Row(
        what=row.what,
        measured=f"{row.p99_ms:.3f} ms p99",
        bound=f"< {row.bound_ms} ms" if bounded else "",
        holds=row.holds if bounded else None,
        note=f"p50 {row.p50_ms:.3f} ms",
    )


if __name__ == "__main__":
    sys.exit(main())
