"""Simulated labs as data: boards as NVIDIA makes them, and a few machines built from them."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gpuspawner.gpus.mig import InstanceProfile

DRIVER_VERSION = "580.95.05"


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One model of GPU. ``profiles`` is empty where there is no partitioning."""

    model: str  # NVML's name
    memory_mib: int
    reserved_mib: int  # of this memory, what the driver keeps for itself: about 1.5 %
    idle_w: float
    limit_w: float
    profiles: tuple[InstanceProfile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetDevice:
    """One GPU of a lab; ``layout`` is its instances if it is partitioned, ``None`` if not."""

    board: Board
    layout: tuple[str, ...] | None = None


def _profiles(
    unit_gb: int, quarter_mib: int, half_mib: int, whole_mib: int, eighth_mib: int
) -> tuple[InstanceProfile, ...]:
    """Name the profiles of a board with eight memory slices (gpu mechanics 6.4 and 6.5)."""
    anywhere, pairs = tuple(range(7)), (0, 2, 4)
    rows = (
        (f"1g.{unit_gb}gb", eighth_mib, 1, 1, anywhere),
        (f"1g.{unit_gb}gb+me", eighth_mib, 1, 1, anywhere),
        (f"1g.{2 * unit_gb}gb", quarter_mib, 1, 2, (*pairs, 6)),
        (f"2g.{2 * unit_gb}gb", quarter_mib, 2, 2, pairs),
        (f"3g.{4 * unit_gb}gb", half_mib, 3, 4, (0, 4)),
        (f"4g.{4 * unit_gb}gb", half_mib, 4, 4, (0,)),
        (f"7g.{8 * unit_gb}gb", whole_mib, 7, 8, (0,)),
    )
    return tuple(
        InstanceProfile(
            name=name,
            memory_mib=memory_mib,
            compute_slices=compute,
            memory_slices=memory,
            starts=starts,
        )
        for name, memory_mib, compute, memory, starts in rows
    )


A100_40 = Board(
    model="NVIDIA A100-SXM4-40GB",
    memory_mib=40960,
    reserved_mib=610,
    idle_w=54.0,
    limit_w=400.0,
    profiles=_profiles(5, eighth_mib=4864, quarter_mib=9856, half_mib=20096, whole_mib=40192),
)
H100_80 = Board(
    model="NVIDIA H100 80GB HBM3",
    memory_mib=81559,
    reserved_mib=1220,
    idle_w=72.0,
    limit_w=700.0,
    profiles=_profiles(10, eighth_mib=9856, quarter_mib=20096, half_mib=40448, whole_mib=81152),
)
RTX_2080_TI = Board(
    model="NVIDIA GeForce RTX 2080 Ti",
    memory_mib=11264,
    reserved_mib=170,
    idle_w=18.0,
    limit_w=260.0,
)

PRESETS: Mapping[str, tuple[PresetDevice, ...]] = MappingProxyType(
    {
        "four-a100": (PresetDevice(board=A100_40),) * 4,
        "mixed-lab": (
            PresetDevice(board=RTX_2080_TI),
            PresetDevice(board=RTX_2080_TI),
            PresetDevice(board=A100_40, layout=("2g.10gb", "2g.10gb", "2g.10gb")),
            PresetDevice(board=H100_80),
        ),
        "dgx-h100": (PresetDevice(board=H100_80),) * 8,
    }
)


def preset(name: str) -> tuple[PresetDevice, ...]:
    """Return a lab by name.

    Raises:
        ValueError: there is none of that name; the sentence lists those that there are.
    """
    if name not in PRESETS:
        raise ValueError(f"there is no simulated lab {name!r}; known are {', '.join(PRESETS)}")
    return PRESETS[name]
