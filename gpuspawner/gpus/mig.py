"""Where instances fit on a partitioned GPU: the model of eight memory slices.

Counting compute slices alone is wrong: an instance takes memory slices from one of a few start
positions, so two 3g instances fill a GPU although a seventh compute slice is left (gpu mechanics
6.4). Pure; nothing here knows whether the GPU is real.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

MEMORY_SLICES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceProfile:
    """A size of instance on one model of GPU.

    Attributes:
        name: the driver's name, such as ``2g.10gb``.
        memory_mib: what an instance really has, a little below its name.
        compute_slices: of the seven.
        memory_slices: of the eight.
        starts: the memory slices at which it may begin.
    """

    name: str
    memory_mib: int
    compute_slices: int
    memory_slices: int
    starts: tuple[int, ...]

    @property
    def sole(self) -> bool:
        """Whether one GPU has room for one only, because it takes the media engines."""
        return self.name.endswith("+me")


@dataclass(frozen=True, slots=True)
class Placement:
    """A profile, and the memory slice where it begins, if somebody chose it."""

    profile: InstanceProfile
    start: int | None = None

    def __str__(self) -> str:
        """Spell it as ``nvidia-smi mig -cgi`` takes it: ``2g.10gb`` or ``2g.10gb:4``."""
        return self.profile.name if self.start is None else f"{self.profile.name}:{self.start}"

    def cells(self, start: int) -> frozenset[int]:
        """Return the memory slices taken from a start."""
        return frozenset(range(start, start + self.profile.memory_slices))


def parse(text: str, profiles: Iterable[InstanceProfile]) -> Placement:
    """Read ``2g.10gb``, or ``2g.10gb:4`` with its start.

    Raises:
        ValueError: the profile is not among those of the GPU, or may not begin there.
    """
    known = {profile.name: profile for profile in profiles}
    name, colon, start = text.partition(":")
    if name not in known:
        raise ValueError(f"{name!r} is not an instance profile here; known are {', '.join(known)}")
    if not colon:
        return Placement(known[name])
    allowed = {str(position): position for position in known[name].starts}
    if start not in allowed:
        raise ValueError(f"{text!r}: {name} begins at memory slice {' or '.join(allowed)}")
    return Placement(known[name], allowed[start])


def place(wanted: Sequence[Placement]) -> tuple[int, ...]:
    """Find a start for each placement, whatever order would be needed to create them.

    Returns:
        The starts, in the order of ``wanted``; the first arrangement in a fixed order, so that
        the same layout always comes out the same.

    Raises:
        ValueError: they do not fit together; the sentence names the first that does not.
    """
    for count in range(1, len(wanted) + 1):
        # Prefix by prefix, to name the culprit; a prefix that fails ends the search early.
        if next(_arrangements(wanted[:count]), None) is None:
            beside = ", ".join(str(item) for item in wanted[: count - 1])
            raise ValueError(
                f"{wanted[count - 1]} does not fit{f' beside {beside}' if beside else ''}"
                f" ({MEMORY_SLICES} memory slices, fixed starts)"
            )
    return next(_arrangements(wanted))


def _arrangements(
    wanted: Sequence[Placement], taken: frozenset[int] = frozenset(), sole: bool = False
) -> Iterator[tuple[int, ...]]:
    if not wanted:
        yield ()
        return
    first, rest = wanted[0], wanted[1:]
    if (first.profile.sole and sole) or _slices(wanted) > MEMORY_SLICES - len(taken):
        return
    for start in first.profile.starts if first.start is None else (first.start,):
        cells = first.cells(start)
        if not cells & taken:
            for others in _arrangements(rest, taken | cells, sole or first.profile.sole):
                yield (start, *others)


def _slices(wanted: Sequence[Placement]) -> int:
    return sum(item.profile.memory_slices for item in wanted)
