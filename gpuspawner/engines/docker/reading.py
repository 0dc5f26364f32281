"""What the engine's answers say. Pure."""

from datetime import UTC, datetime
from typing import Any, Final

from gpuspawner.domain.leases import Evidence, Source
from gpuspawner.engines.look import Finished, Look, Made, Running

_NEVER: Final = "0001-01-01T"  # Go's zero time

Inspected = dict[str, Any]


def read_state(container: Inspected) -> Look:
    """Say what an inspected container is."""
    state = container["State"]
    if state.get("Running") or state.get("Paused") or state.get("Restarting"):
        return Running(run_id=container["Id"], started_at=parse_time(state["StartedAt"]))
    if state.get("Status") == "created" or state["StartedAt"].startswith(_NEVER):
        return Made(run_id=container["Id"])  # also one whose removal is under way
    return Finished(
        run_id=container["Id"],
        evidence=Evidence(
            source=Source.ENGINE,
            finished_at=parse_time(state["FinishedAt"]),
            exit_code=state.get("ExitCode"),
            out_of_memory=bool(state.get("OOMKilled")),
        ),
    )


def parse_time(text: str) -> datetime:
    """Read the engine's RFC 3339 times, which carry nanoseconds, as aware UTC."""
    return datetime.fromisoformat(text).astimezone(UTC)
