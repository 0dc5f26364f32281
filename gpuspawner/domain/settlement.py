"""Settlement: what one look at the books decides. Pure; `gpuspawner.broker` writes it down."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpuspawner.domain.placement import explain, place
from gpuspawner.domain.pool import Pool
from gpuspawner.domain.profiles import Profile
from gpuspawner.domain.reasons import Reason
from gpuspawner.domain.slices import Hold, Slice


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """A lease that waits, as the rule needs it."""

    lease_id: int
    profile: Profile
    may_wait: bool
    start_seconds: int = 600
    alternatives: tuple[Profile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """These slices become this lease's."""

    lease_id: int
    slices: tuple[Slice, ...]
    group: str | None
    start_seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Nothing is free, and this lease may not wait."""

    lease_id: int
    reason: Reason


def settle(pool: Pool, waiters: Sequence[Waiter]) -> list[Grant | Refusal]:
    """Decide for each waiter in the order given, each on what the earlier ones left.

    Grants are entered into ``pool``, so that two of one settlement never get the same slice.
    """
    decisions: list[Grant | Refusal] = []
    found_nothing: set[Profile] = set()  # room only shrinks here: what failed once fails again
    for waiter in waiters:
        is_hopeless = waiter.profile in found_nothing
        slices = None if is_hopeless else place(pool, waiter.profile)
        if slices is not None:
            group = waiter.profile.share_group
            for each in slices:
                pool.add(Hold(lease_id=waiter.lease_id, slice=each, group=group))
            decisions.append(
                Grant(
                    lease_id=waiter.lease_id,
                    slices=slices,
                    group=group,
                    start_seconds=waiter.start_seconds,
                )
            )
            continue
        if not is_hopeless:
            found_nothing.add(waiter.profile)
        if not waiter.may_wait:
            why = explain(pool, waiter.profile, waiter.alternatives)
            decisions.append(Refusal(lease_id=waiter.lease_id, reason=why))
    return decisions
