"""The settings of a hub, as traits; their help is the manual.

They stand on one class that both spawners inherit: write ``c.GPUSpawner.profiles`` for all, or
``c.GPUDockerSpawner.profiles`` for one.
"""

import os
from typing import Any

from traitlets import Dict, Int, List, TraitError, Unicode, default, validate
from traitlets.config import Configurable

from gpuspawner.domain.policy import PlacementPolicy, Policy, parse_policy
from gpuspawner.hubid import DEFAULT_FILE, is_hub_id
from gpuspawner.ledger.store import DEFAULT_URL

LEDGER_URL_VARIABLE = "GPUSPAWNER_LEDGER_URL"


def default_ledger_url() -> str:
    """Return the ledger's address from the environment, else a SQLite file beside the hub."""
    return os.environ.get(LEDGER_URL_VARIABLE) or DEFAULT_URL


class GPUSettings(Configurable):
    """What a site decides about its GPUs."""

    profiles = List(
        Dict(),
        config=True,
        help="""
        What people can choose in the spawn form, in this order. Each is a mapping:

        - ``name``: 1 to 40 of a-z, 0-9 and '-'; what scripts and courses refer to;
        - ``title``, ``description``: what people read;
        - ``mode``: ``whole``, ``mig`` (a hardware partition) or ``time-sliced`` (a share); none
          for a server without GPU;
        - ``count``: how many whole GPUs, all on one host and of one model, or none at all;
        - ``memory``: the share's size, such as ``5GiB``; the least memory otherwise;
        - ``compute_percent``: of shares, 1 to 100; shown and passed on, enforced by nothing yet;
        - ``instance``: the driver's name of the partition's size, such as ``2g.10gb``;
        - ``models``: parts of model names that fit;
        - ``groups``: hub groups that may use it (none: everybody); a share names exactly one,
          whose members share devices among themselves;
        - ``images``: images to choose from, the first is the default;
        - ``default``: what an empty choice means (else the first profile without GPU);
        - ``hour_weight``: GPU-hours per hour by part of a model's name, for budgets.
        """,
    )
    devices = List(
        Dict(),
        config=True,
        help="""
        How devices are handed out; the first rule that fits a device counts. Each is a mapping:
        ``select`` (a UUID, a part of the model's name, ``#index`` or ``*``), ``modes`` (a list of
        ``whole``, ``mig``, ``time-sliced``), ``headroom`` (memory that is never handed out as a
        share, default ``512MiB``). Without a rule a device is handed out whole, or by its MIG
        instances where it has them.
        """,
    )
    placement = Unicode(
        str(PlacementPolicy.LEAST_LOADED),
        config=True,
        help="""
        Which of the fitting slices is taken: ``least-loaded`` (most free memory after promises,
        then lowest load, then fewest tenants), ``binpack`` or ``spread``.
        """,
    )
    ledger_url = Unicode(
        config=True,
        help=f"""
        Where the books are: ``sqlite:///FILE`` on a local disk, or ``postgresql://...``. Hub,
        service and agent need the same. Default: the variable ``{LEDGER_URL_VARIABLE}``, else
        ``{DEFAULT_URL}`` in the hub's working directory.
        """,
    )
    hub_id = Unicode(
        config=True,
        help="""
        1 to 16 characters a-z and 0-9 that tell this hub's containers and volumes from another
        hub's on the same engine. Default: kept in ``hub_id_file``, made at the first use.
        """,
    )
    hub_id_file = Unicode(
        DEFAULT_FILE,
        config=True,
        help="The file that keeps the hub's id; back it up with the hub's database.",
    )
    concurrent_starts = Int(
        10,
        min=1,
        config=True,
        help="How many servers may be started at the engine at once, after they have their slice.",
    )
    retry_seconds = Int(
        60,
        min=1,
        config=True,
        help="What ``Retry-After`` says when nothing is free (seconds).",
    )
    pull_seconds = Int(
        900,
        min=1,
        config=True,
        help="How long pulling an image may take (seconds). Counts towards ``start_timeout``.",
    )
    language = Unicode(
        "en",
        config=True,
        help="The language for readers whose browser asks for none of ours: ``en``, ``zh_Hans``.",
    )

    @default("ledger_url")
    def _default_ledger_url(self) -> str:
        return default_ledger_url()

    @validate("hub_id")
    def _check_hub_id(self, proposal):
        if proposal["value"] and not is_hub_id(proposal["value"]):
            raise TraitError(
                f"hub_id: expected 1 to 16 characters a-z and 0-9, got {proposal['value']!r}"
            )
        return proposal["value"]

    @validate("profiles", "devices", "placement")
    def _check_policy(self, proposal):
        values: dict[str, Any] = {"profiles": [], "devices": []}
        values[proposal["trait"].name] = proposal["value"]
        try:
            parse_policy(**values)
        except ValueError as error:
            raise TraitError(str(error)) from error
        return proposal["value"]

    def policy(self) -> Policy:
        """Return the settings as the rules read them."""
        return parse_policy(self.profiles, self.devices, self.placement)
