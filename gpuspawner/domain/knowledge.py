"""Knowledge: whether the books may be believed when they say that a lease's server runs.

What runs is known by an engine's answers to the agent of its host. Where these stop, nothing is
known from then on: unknown is neither gone nor zero, so nothing ends, frees or alarms by it. It is
only shown, with since when.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from gpuspawner.domain.devices import DeviceUUID, HostInventory
from gpuspawner.domain.leases import HOLDING, Lease
from gpuspawner.domain.reconciliation import EngineState

# An agent writes every 30 seconds how its engines answered, and which servers it saw running.
WORD_HOLDS_FOR: Final = timedelta(seconds=90)


class Why(StrEnum):
    """Why something is not known."""

    NOT_OBSERVED = "not-observed"  # no agent has ever looked there: nothing to worry about yet
    ENGINE_SILENT = "engine-silent"  # the engine does not answer its host's agent
    AGENT_AWAY = "agent-away"  # the agent itself has written nothing for too long
    NOT_SHOWN = "not-shown"  # the engine answers, and does not say that this server runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """What is not known, and since when. ``since`` is None only for what never was observed."""

    why: Why
    since: datetime | None = None


class Knowledge:
    """What the agents' words are worth at one moment."""

    def __init__(
        self, states: Iterable[EngineState], hosts: Iterable[HostInventory], now: datetime
    ) -> None:
        """Join how each engine answered last with where the devices are; ``now`` is aware UTC."""
        self._now = now
        self._states = {(state.host_id, state.engine): state for state in states}
        self._hosts: dict[DeviceUUID, list[str]] = {}
        for host in hosts:
            for device in host.devices:
                self._hosts.setdefault(device.uuid, []).append(host.host_id)

    def of_engine(self, state: EngineState) -> Unknown | None:
        """Return what is not known because of an engine; None while its word holds.

        Nothing is known since it answered last, not since somebody noticed that it is silent.
        """
        since = state.answered_at or state.silent_since
        if state.silent_since is not None:
            return Unknown(why=Why.ENGINE_SILENT, since=since)
        if since is None:
            return Unknown(why=Why.NOT_OBSERVED)
        if self._now - since > WORD_HOLDS_FOR:
            return Unknown(why=Why.AGENT_AWAY, since=since)
        return None

    def is_missed(self, state: EngineState, living: Iterable[Lease]) -> bool:
        """Whether the word of an engine that is unknown is missed by anybody.

        An agent asks every kind of engine, also those that its host does not have: one that never
        answered and runs nobody's server is none to speak of.
        """
        if self.of_engine(state) is None:
            return False
        return state.answered_at is not None or any(
            lease.state in HOLDING and state in self.engines_of(lease) for lease in living
        )

    def of(self, lease: Lease) -> Unknown | None:
        """Return since when it is not known whether a lease's server runs, and why.

        None is that it is known, or that there is no server to know of: the lease waits or has
        ended. A time before the grant, or before the server was last seen, is never returned.
        """
        if lease.state not in HOLDING:
            return None
        found = self.engines_of(lease)
        if not found:
            return Unknown(why=Why.NOT_OBSERVED)
        verdicts = [self.of_engine(state) for state in found]
        unknown = [each for each in verdicts if each is not None]
        if len(unknown) < len(verdicts):  # of a host that was renamed the old name is silent
            return self._not_shown(lease)
        latest = max(unknown, key=lambda each: _moment(each, lease))
        if latest.since is None:
            return latest
        return Unknown(why=latest.why, since=_moment(latest, lease))

    def shows_running(self, lease: Lease) -> bool:
        """Whether an engine's word that still holds is that this lease's server runs."""
        started = lease.state in HOLDING and lease.running_at is not None
        return started and self.of(lease) is None

    def engines_of(self, lease: Lease) -> list[EngineState]:
        """Return the engines that may run a lease's server, also where its host has a new name."""
        names: set[str] = {item.host_id for item in lease.slices}
        for item in lease.slices:
            names.update(self._hosts.get(item.device_uuid, ()))
        keys = [(name, lease.engine) for name in sorted(names)]
        return [self._states[key] for key in keys if key in self._states]

    def _not_shown(self, lease: Lease) -> Unknown | None:
        """Judge by the server itself: one that runs is seen anew all the time."""
        if lease.running_at is None:
            return None
        seen = max(filter(None, (lease.running_at, lease.last_seen_at)))
        if self._now - seen <= WORD_HOLDS_FOR:
            return None
        return Unknown(why=Why.NOT_SHOWN, since=seen)


def _moment(unknown: Unknown, lease: Lease) -> datetime:
    """Return since when this holds for a lease: not before its grant, nor before it was seen."""
    times = (unknown.since, lease.granted_at, lease.last_seen_at)
    return max(time for time in (*times, lease.requested_at) if time is not None)
