"""What an engine's list says of each container, and which devices one was given. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from gpuspawner.domain.reconciliation import Found
from gpuspawner.engines.docker import labels as our_labels

_RUNS: Final = frozenset({"running", "paused", "restarting"})
_VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
_NONE: Final = frozenset({"", "void", "none"})
# By one of these a request without a driver's name reaches the nvidia driver.
_CAPABILITIES: Final = frozenset(
    {"gpu", "nvidia", "compute", "compat32", "graphics", "utility", "video", "display"}
)

Devices = tuple[str, ...] | None


def has_grant(summary: Mapping[str, Any]) -> bool:
    """Whether a container of the list carries the marks of a grant, of whichever hub."""
    labels = summary.get("Labels") or {}
    return our_labels.key_of(labels) is not None and our_labels.fence_of(labels) is not None


def runs(summary: Mapping[str, Any]) -> bool:
    """Whether a container of the list runs; one that is paused does."""
    return summary.get("State") in _RUNS


def found(summary: Mapping[str, Any], devices: Devices) -> Found:
    """Read one container of the list.

    Args:
        summary: an item of the engine's answer.
        devices: what a container without a grant was given; one with a grant says so itself.
    """
    labels = summary.get("Labels") or {}
    names = summary.get("Names") or [summary["Id"][:12]]
    return Found(
        run_id=summary["Id"],
        name=str(names[0]).lstrip("/"),
        runs=runs(summary),
        made_at=datetime.fromtimestamp(summary["Created"], UTC),
        devices=_of_slices(labels) if has_grant(summary) else devices,
        tolerated=labels.get(our_labels.IGNORE) == "true",
        key=our_labels.key_of(labels),
        fence=our_labels.fence_of(labels),
        grant=our_labels.grant_of(labels),
    )


def devices_of(container: Mapping[str, Any], default_runtime: str) -> Devices:
    """Return the devices that an inspected container was given, by whatever way.

    A device request, the variable that NVIDIA's runtime reads (gpu mechanics 5.1), or a device
    node. A privileged container without any of these is not counted: monitors are made so.
    """
    labels = container["Config"].get("Labels") or {}
    if labels.get(our_labels.IGNORE) == "true":
        return ()
    host = container["HostConfig"]
    given: set[str] = set()
    ways = [*(_of_request(each) for each in host.get("DeviceRequests") or ())]
    runtime = str(host.get("Runtime") or default_runtime)
    if runtime.startswith("nvidia"):  # also nvidia-cdi, nvidia-legacy
        ways.append(_of_variable(container["Config"].get("Env") or ()))
    ways.extend(_of_node(str(each.get("PathOnHost", ""))) for each in host.get("Devices") or ())
    for devices in ways:
        if devices is None:
            return None
        given.update(devices)
    return tuple(sorted(given))


def _of_slices(labels: Mapping[str, str]) -> Devices:
    text = labels.get(our_labels.SLICES, "")
    return tuple(part.split("/")[0] for part in text.split(",")) if text else None


def _of_request(request: Mapping[str, Any]) -> Devices:
    driver, ids = request.get("Driver") or "", request.get("DeviceIDs") or ()
    wanted = {name for group in request.get("Capabilities") or () for name in group}
    if driver == "cdi":
        return _named(name for name in map(str, ids) if _is_gpu_kind(name))
    if driver != "nvidia" and (driver or not wanted & _CAPABILITIES):
        return ()
    if ids:
        return _named(map(str, ids))
    count = int(request.get("Count") or 0)
    return None if count < 0 else tuple(str(index) for index in range(count))


def _of_variable(environment: Sequence[str]) -> Devices:
    values = dict(text.partition("=")[::2] for text in environment)  # of one name the last counts
    if _VISIBLE in values:
        value = values[_VISIBLE].strip()
        return () if value in _NONE else _named(part.strip() for part in value.split(","))
    # Images from before the variable are given all.
    is_old = "CUDA_VERSION" in values and "NVIDIA_REQUIRE_CUDA" not in values
    return None if is_old else ()


def _of_node(path: str) -> Devices:
    if path.rstrip("/") == "/dev":
        return None
    number = path.removeprefix("/dev/nvidia")
    return (number,) if number != path and number.isascii() and number.isdigit() else ()


def _is_gpu_kind(name: str) -> bool:
    """Whether a CDI name is a GPU's, as in ``nvidia.com/gpu=0``, and not a network card's."""
    return name.partition("=")[0].rpartition("/")[2] == "gpu"


def _named(names: Iterable[str]) -> Devices:
    """Return devices by their names, which may be CDI's; ``all`` among them is all."""
    given = tuple(name.rpartition("=")[2] for name in names)
    return None if "all" in given else given
