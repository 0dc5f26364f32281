"""Endings: what a way of ending is called, and when a lease may be ended."""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from gpuspawner.domain.leases import Evidence, Lease, Source, State
from gpuspawner.domain.reasons import Code, Reason, reason

# A start that was cut off may still reach the engine a moment after its deadline.
START_MARGIN: Final = timedelta(seconds=30)
LEAVE_TO_HUB: Final = timedelta(seconds=5)


def why_ended(evidence: Evidence, *, absent: bool) -> Reason:
    """Name an end that nobody asked for, from what the engine shows.

    Args:
        evidence: the engine's record.
        absent: whether the server's container is gone, so that somebody removed it from outside.
    """
    if evidence.out_of_memory:
        return reason(Code.OUT_OF_MEMORY)
    if evidence.source is Source.NEVER_RAN:
        return reason(Code.GIVEN_UP)
    if absent:
        return reason(Code.REMOVED)
    return reason(Code.EXITED, exit_code=evidence.exit_code)


# A server that its hub does not know any more is left this long, for whoever mends the hub.
FORGOTTEN_AFTER: Final = timedelta(minutes=10)


def is_forgotten(lease: Lease, missing_since: datetime | None, now: datetime) -> bool:
    """Whether nobody can reach a running server any more, because its hub does not know it.

    Args:
        lease: the lease.
        missing_since: since when each whole answer of its hub lacks the server; None: it does not.
        now: aware UTC.
    """
    if lease.state is not State.RUNNING or missing_since is None:
        return False
    return now - missing_since >= FORGOTTEN_AFTER


class Step(StrEnum):
    """What the agent does about a lease after a look at its server."""

    LEAVE = "leave"
    RUN = "run"  # its server runs, and the books do not say so yet
    CLEAR = "clear"  # stop and remove what is there, then end the lease


def next_step(
    lease: Lease, *, runs: bool, over: bool, ended_at: datetime | None, now: datetime
) -> Step:
    """Decide about a lease that holds slices, from one sure look at its server.

    While a start may still be under way, it is the hub's: the agent steps in when the time for
    the start is over. A server that ended moments ago is left for the hub too, which may be
    reading its last log lines to tell its owner.

    Args:
        lease: the lease, in a holding state.
        runs: whether the server runs.
        over: whether it ran and ended, or is gone.
        ended_at: when it ended, if that is known.
        now: aware UTC.
    """
    if lease.state is State.ENDING:
        return (
            Step.CLEAR if lease.look_again_at is None or now >= lease.look_again_at else Step.LEAVE
        )
    if lease.state is State.GRANTED:
        if lease.start_deadline is None or now < lease.start_deadline + START_MARGIN:
            return Step.LEAVE
        return Step.RUN if runs else Step.CLEAR
    if not over:
        return Step.LEAVE
    fresh = ended_at is not None and now - ended_at < LEAVE_TO_HUB
    return Step.LEAVE if fresh else Step.CLEAR
