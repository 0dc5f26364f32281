"""The soak as a test: a minute by default, five in CI, or ``GPUSPAWNER_SOAK_MINUTES``."""

import os
import random

import pytest

from tests.soak.site import open_site
from tests.soak.soak import Soak

_DEFAULT = "5" if os.environ.get("CI") else "1"
MINUTES = float(os.environ.get("GPUSPAWNER_SOAK_MINUTES", _DEFAULT))
# The check of a change makes the same choices each time; people make others.
SEED = os.environ.get("GPUSPAWNER_SOAK_SEED", "10" if os.environ.get("CI") else "")

pytestmark = [
    pytest.mark.engine,
    pytest.mark.proves("P1", "P2", "R7"),
    # Each quiet moment and the end may take minutes when things are bad, and then say so.
    pytest.mark.timeout(MINUTES * 60 * 3 + 600),
]


@pytest.mark.usefixtures("engine_seed")
def test_books_engine_and_hub_agree_after_random_faults() -> None:
    seed = int(SEED) if SEED else random.SystemRandom().randrange(1_000_000)
    with open_site() as site:
        soak = Soak(site, seed)
        soak.run(MINUTES)
        print(soak.summary())
    assert soak.tally["quiet"] >= MINUTES
