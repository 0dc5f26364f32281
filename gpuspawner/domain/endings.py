"""Endings: what a way of ending is called, and when a lease may be ended."""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from gpuspawner.domain.leases import Evidence, Lease, Source, State
from gpuspawner.domain.reasons import Code, Reason, reason

# A start that was cut off may still reach the engine a moment after its deadline.
START_MARGIN: Final = timedelta(seconds=30)
LEAVE_TO_HUB: Final = timedelta(seconds=5)
# The hub writes down that a server runs right after it was started, unless it is gone itself.
LEAVE_RUN_TO_HUB: Final = timedelta(seconds=30)


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
    lease: Lease,
    *,
    running_since: datetime | None,
    over: bool,
    absent: bool,
    ended_at: datetime | None,
    now: datetime,
) -> Step:
    """Decide about a lease that holds slices, from one sure look at its server.

    While a start may still be under way, it is the hub's: the agent steps in when the time for
    the start is over, and sooner only to write down what has been running for a while. A server
    that ended moments ago is left for the hub too, which may be reading its last log lines to
    tell its owner. A lease that is to end waits for a server that may still come only until that
    is there.

    Args:
        lease: the lease, in a holding state.
        running_since: since when the server runs, by the engine; None: it does not.
        over: whether it ran and ended, or is gone.
        absent: whether nothing is there, not even what it ran in.
        ended_at: when it ended, if that is known.
        now: aware UTC.
    """
    if lease.state is State.ENDING:
        may_come = lease.look_again_at is not None and now < lease.look_again_at
        return Step.LEAVE if absent and may_come else Step.CLEAR
    if lease.state is State.GRANTED:
        expired = lease.start_deadline is not None and now >= lease.start_deadline + START_MARGIN
        if running_since is not None:
            is_told = lease.run_id is not None and now - running_since >= LEAVE_RUN_TO_HUB
            return Step.RUN if expired or is_told else Step.LEAVE
        return Step.CLEAR if expired else Step.LEAVE
    if not over:
        return Step.LEAVE
    fresh = ended_at is not None and now - ended_at < LEAVE_TO_HUB
    return Step.LEAVE if fresh else Step.CLEAR
