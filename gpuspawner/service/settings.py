"""What the service is told by its environment, read once and checked."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from gpuspawner.hubid import DEFAULT_FILE, HUB_ID_FILE_VARIABLE, HUB_ID_VARIABLE

LOOPBACK: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8095
ADDRESSES_VARIABLE: Final = "GPUSPAWNER_SERVICE_ADDRESSES"
LANGUAGE_VARIABLE: Final = "GPUSPAWNER_LANGUAGE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where the service listens and what its links begin with.

    ``refused`` are addresses that were asked for and are never listened on: a wildcard would
    open the service to every network of the machine.

    ``hub_id`` is empty where ``hub_id_file`` keeps it.
    """

    name: str
    port: int
    addresses: tuple[str, ...]
    prefix: str
    hub_url: str
    keep_in: Path
    hub_id: str
    hub_id_file: Path
    language: str
    refused: tuple[str, ...] = ()

    @property
    def spawn_url(self) -> str:
        """The hub's page on which a server is started."""
        return f"{self.hub_url}spawn"

    @property
    def home_url(self) -> str:
        """The hub's page with a person's servers."""
        return f"{self.hub_url}home"


def settings_from(environment: Mapping[str, str], ledger_file: str | None) -> Settings:
    """Read the settings. Nothing here fails: what is missing has the hub's own default.

    Args:
        environment: the process's variables, as the hub or a unit sets them.
        ledger_file: the file of a SQLite ledger, beside which the service keeps its own.
    """
    wanted = [part.strip() for part in environment.get(ADDRESSES_VARIABLE, "").split(",")]
    wanted = [part for part in wanted if part]
    allowed = [LOOPBACK, *(part for part in wanted if not _is_wildcard(part))]
    base = _slashed(environment.get("JUPYTERHUB_BASE_URL", "/"))
    name = environment.get("JUPYTERHUB_SERVICE_NAME", "gpu")
    beside = ledger_file or environment.get(HUB_ID_FILE_VARIABLE) or DEFAULT_FILE
    language = environment.get(LANGUAGE_VARIABLE, "en")
    return Settings(
        name=name,
        port=urlsplit(environment.get("JUPYTERHUB_SERVICE_URL", "")).port or DEFAULT_PORT,
        addresses=tuple(dict.fromkeys(allowed)),
        prefix=_slashed(environment.get("JUPYTERHUB_SERVICE_PREFIX") or f"{base}services/{name}/"),
        hub_url=environment.get("JUPYTERHUB_HOST", "") + base + "hub/",
        keep_in=Path(beside).parent,
        hub_id=environment.get(HUB_ID_VARIABLE, ""),
        hub_id_file=Path(environment.get(HUB_ID_FILE_VARIABLE) or DEFAULT_FILE),
        language=language if language in ("en", "zh_Hans") else "en",
        refused=tuple(part for part in wanted if _is_wildcard(part)),
    )


def _slashed(path: str) -> str:
    return "/" + "".join(f"{part}/" for part in path.split("/") if part)


def _is_wildcard(address: str) -> bool:
    if address in ("*", ""):
        return True
    try:
        return ipaddress.ip_address(address.strip("[]")).is_unspecified
    except ValueError:  # a name, resolved when it is bound
        return False
