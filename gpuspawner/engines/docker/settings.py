"""What the engine is asked for, as a pure function: a site's own request in, ours on top out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from gpuspawner.domain.reasons import Code, RefusedError, reason
from gpuspawner.domain.slices import Slice
from gpuspawner.domain.units import MIB
from gpuspawner.engines.environment import gpu_environment, without_ours

DEFAULT_SHM_BYTES: Final = 1024 * MIB


class Attach(StrEnum):
    """How devices get into a container."""

    NVIDIA = "nvidia"  # a device request for the engine's nvidia driver
    CDI = "cdi"  # by CDI names; engine 25 or later
    NONE = "none"  # not at all: for simulated devices on an engine that knows no GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What we add to a site's request for one container."""

    labels: Mapping[str, str]
    slices: Sequence[Slice] = ()
    attach: Attach = Attach.NVIDIA
    home_volume: str = ""
    home_path: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


def finish(request: Mapping[str, Any], terms: Terms) -> dict[str, Any]:
    """Complete a ``create_container`` request of docker-py.

    The site's values stay; what the lease decides comes last. The input is not changed.

    Raises:
        RefusedError: the site's own settings contradict a lease (its own device request, a
            restart policy, privilege together with a GPU).
    """
    host = dict(request.get("host_config") or {})
    _check(host)
    host["AutoRemove"] = False  # we remove after reading how it ended (hub facts H9)
    host.setdefault("Init", True)  # reaps zombies, which would hold GPU memory
    if not host.get("ShmSize"):
        host["ShmSize"] = DEFAULT_SHM_BYTES  # the engine's 64 MiB kill data loaders
    if terms.slices and terms.attach is not Attach.NONE:
        host["DeviceRequests"] = [device_request(terms.slices, terms.attach)]
    finished = dict(request)
    volumes = list(request.get("volumes") or [])
    if terms.home_volume and terms.home_path and not _is_mounted(host, terms.home_path):
        host["Binds"] = [*(host.get("Binds") or []), f"{terms.home_volume}:{terms.home_path}:rw"]
        volumes.append(terms.home_path)
    finished["host_config"] = host
    finished["volumes"] = volumes
    finished["labels"] = {**_labels(request.get("labels")), **terms.labels}
    finished["environment"] = {
        **without_ours(_environment(request.get("environment"))),
        **terms.environment,
        **gpu_environment(terms.slices),
    }
    return finished


def device_request(slices: Sequence[Slice], attach: Attach) -> dict[str, Any]:
    """Return one device request by explicit UUIDs, never by a count (gpu mechanics 5.1)."""
    ids = [item.uuid for item in slices]
    if attach is Attach.CDI:
        return {
            "Driver": "cdi", "Count": 0, "DeviceIDs": [f"nvidia.com/gpu={uuid}" for uuid in ids],
            "Capabilities": [], "Options": {},
        }  # fmt: skip
    return {
        "Driver": "nvidia", "Count": 0, "DeviceIDs": ids,
        "Capabilities": [["gpu", "compute", "utility"]], "Options": {},
    }  # fmt: skip


def _check(host: Mapping[str, Any]) -> None:
    if host.get("DeviceRequests"):
        _refuse("device_requests", "gpuspawner attaches devices by the lease, and nobody else may")
    policy = (host.get("RestartPolicy") or {}).get("Name") or "no"
    if policy != "no":
        _refuse("restart_policy", "a restarted container would keep a slice that is given back")
    if host.get("Privileged"):
        _refuse("privileged", "a privileged container sees every GPU of the host")
    devices = [str(item.get("PathOnHost", "")) for item in host.get("Devices") or ()]
    if any("/nvidia" in path for path in devices):
        _refuse("devices", "a GPU's device node would go around the lease")


def _refuse(setting: str, why: str) -> None:
    raise RefusedError(reason(Code.SITE_SETTING, setting=setting, why=why))


def _is_mounted(host: Mapping[str, Any], path: str) -> bool:
    targets = {str(mount.get("Target", "")) for mount in host.get("Mounts") or ()}
    for bind in host.get("Binds") or ():
        parts = str(bind).split(":")
        if len(parts) > 1:
            targets.add(parts[1])
    return path.rstrip("/") in {target.rstrip("/") for target in targets}


def _labels(labels: Any) -> dict[str, str]:
    if isinstance(labels, Mapping):
        return {str(key): str(value) for key, value in labels.items()}
    return {str(label): "" for label in labels or ()}


def _environment(environment: Any) -> dict[str, str | None]:
    """Return a mapping; None, or a name without ``=``, takes a variable of the image's away."""
    if isinstance(environment, Mapping):
        return dict(environment)
    pairs = (str(item).partition("=") for item in environment or ())
    return {key: value if equals else None for key, equals, value in pairs}
