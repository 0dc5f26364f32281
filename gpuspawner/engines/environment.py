"""The variables that tell a notebook what it has; the same for every engine."""

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from gpuspawner.domain.devices import Mode
from gpuspawner.domain.slices import Slice
from gpuspawner.domain.units import MIB

Value = TypeVar("Value")

NVIDIA_VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"

# Given by us or by nobody: a value of a site's, a hook's or an image's own would contradict the
# lease.
_OURS: Final = (
    NVIDIA_VISIBLE_DEVICES, "NVIDIA_DRIVER_CAPABILITIES", "CUDA_VISIBLE_DEVICES",
    "GPU_MODE", "GPU_UUIDS", "GPU_MEM_LIMIT", "GPU_COMPUTE_LIMIT",
)  # fmt: skip


def gpu_environment(slices: Sequence[Slice]) -> dict[str, str]:
    """Return the variables that tell a notebook what it has.

    A server without GPU gets ``NVIDIA_VISIBLE_DEVICES=void`` all the same: NVIDIA's runtime hands
    every GPU to an image that carries ``all`` (gpu mechanics 5.3).
    """
    if not slices:
        return {NVIDIA_VISIBLE_DEVICES: "void"}
    uuids = ",".join(item.uuid for item in slices)
    environment = {
        NVIDIA_VISIBLE_DEVICES: uuids,
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "GPU_MODE": str(slices[0].mode),
        "GPU_UUIDS": uuids,
    }
    # One number for one device; several whole devices have no common cap to name.
    if len(slices) == 1 and slices[0].memory_mib is not None:
        environment["GPU_MEM_LIMIT"] = str(slices[0].memory_mib * MIB)
    if slices[0].compute_percent is not None and slices[0].mode is not Mode.WHOLE:
        environment["GPU_COMPUTE_LIMIT"] = str(slices[0].compute_percent)
    return environment


def without_ours(environment: Mapping[str, Value]) -> dict[str, Value]:
    """Return an environment without the variables that only a lease may give."""
    return {key: value for key, value in environment.items() if key not in _OURS}
