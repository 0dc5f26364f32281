"""What goes over the wire, as pydantic models: the OpenAPI document is made from these.

Quantities carry their unit in the name, times are ISO 8601 in UTC, and what is not known is null,
never 0. ``label`` and ``message`` are words for people, in the reader's language; everything else
is the same in every language.
"""

from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, PlainSerializer

from gpuspawner.domain.devices import Mode, Trouble
from gpuspawner.domain.leases import State
from gpuspawner.domain.picture import Shown
from gpuspawner.service.parts import PartState


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _tenths(seconds: float) -> float:
    return round(seconds, 1)


Moment = Annotated[AwareDatetime, PlainSerializer(_iso, return_type=str, when_used="json")]

LEASES_AT_ONCE = 200
LEASES_USUALLY = 50


class Body(BaseModel):
    """An answer: every field is always there."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, json_schema_serialization_defaults_required=True
    )


class Query(BaseModel):
    """The parameters of a request: unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NoQuery(Query):
    """No parameters."""


class LeasesQuery(Query):
    """Which leases."""

    user: str | None = Field(
        default=None,
        max_length=255,
        pattern=r"^[^\x00-\x1f]*$",
        description="Whose; another's for administrators only. Without it: one's own, and "
        "everybody's for administrators.",
    )
    state: list[State] = Field(
        default_factory=list, max_length=5, description="In these states; may be repeated."
    )
    limit: int = Field(
        default=LEASES_USUALLY,
        description=f"How many at most; brought into 1 to {LEASES_AT_ONCE}.",
    )
    before: int | None = Field(
        default=None,
        ge=1,
        le=2**53,
        description="Only leases with a lower number: the ``next_before`` of the page before.",
    )


class TroubleBody(Body):
    """Why something is unavailable."""

    trouble: Trouble
    detail: str = Field(
        description="A note of the operator, what the hardware said, or, for administrators, what "
        "uses it without a lease."
    )
    label: str


class Since(Body):
    """Since when a part does so: at the earliest since the service began."""

    ledger: Moment
    hub: Moment


class AgentHealth(Body):
    """How one host's agent does."""

    model_config = ConfigDict(**Body.model_config, from_attributes=True)

    state: PartState = Field(description="Unknown while the ledger does not answer.")
    since: Moment = Field(description="Since when it has this state.")
    age_seconds: Annotated[float, PlainSerializer(_tenths, return_type=float)] = Field(
        description="How old its last report is."
    )
    silent: bool = Field(description="It has not reported for too long: readings are old.")
    trouble: bool = Field(description="It could not ask its hardware in its last look.")
    simulated: bool = Field(description="Its GPUs are simulated.")


class Health(Body):
    """How the service does. Names no person, no host and no secret."""

    status: Literal["ok", "degraded"]
    version: str
    ledger: PartState
    hub: PartState = Field(description="The hub's API, which says who asks.")
    since: Since
    inventory: list[AgentHealth] = Field(description="One for each host, in a fixed order.")
    problems: list[str] = Field(description="Codes of what stands against ``ok``.")


class SliceBody(Body):
    """What a lease holds, or one part of a device."""

    slice_id: str | None = Field(description="Null for room that no slice is cut from yet.")
    host_id: str
    device_uuid: str
    model: str
    modes: list[Mode] = Field(description="How it is handed out; room may be in several ways.")
    memory_mib: int | None
    compute_percent: int | None
    instance_profile: str | None
    label: str


class ReasonBody(Body):
    """Why something was refused or ended."""

    code: str
    message: str


class ProfileName(Body):
    """What was chosen."""

    name: str
    title: str


class ProcessBody(Body):
    """One process of a server on a GPU."""

    memory_mib: int | None
    busy_percent: int | None = Field(
        description="The most that was sampled since the look before: the share of time in which "
        "its kernels ran."
    )
    command: str = Field(description="The name of its program, cut to 15 characters.")
    kernel_id: str | None = Field(description="The notebook's kernel that it is or that began it.")


class UseBody(Body):
    """What a server uses of its GPUs together."""

    observed_at: Moment
    memory_mib: int | None
    busy_percent: int | None = Field(
        description="Of its busiest process. Of MIG instances only newer chips tell it."
    )
    processes: list[ProcessBody] | None = Field(
        description="One for each process and GPU. Null: they could not be listed."
    )


class LeaseBody(Body):
    """One record, from request to end."""

    lease_id: int
    user: str
    server: str = Field(description="The server's name; empty for the default server.")
    state: State
    profile: ProfileName
    image: str | None
    requested_at: Moment
    granted_at: Moment | None
    running_at: Moment | None
    finished_at: Moment | None = Field(description="When its server ended, by the engine.")
    ended_at: Moment | None
    unknown_since: Moment | None = Field(
        description="Since when it is not known whether its server runs; it stays held. Null: it "
        "is known, nothing runs yet or any more, or no agent has ever looked."
    )
    use: UseBody | None = Field(
        description="What its server uses of its GPUs. Null: it is not known, or nothing is held."
    )
    slices: list[SliceBody]
    reason: ReasonBody | None


class ProfileBody(Body):
    """A profile that the reader may use, and what is free of it now."""

    name: str
    title: str
    description: str
    mode: Mode | None = Field(description="Null for a server without GPU.")
    count: int
    memory_mib: int | None
    free: int | None = Field(description="Null where it needs no GPU.")
    total: int | None
    in_use: int | None
    unavailable: int | None
    label: str


class Me(Body):
    """Who asks, and what is theirs."""

    user: str
    kind: Literal["person", "notebook"]
    server: str | None = Field(description="The server that a notebook's token speaks for.")
    admin: bool
    groups: list[str]
    living: list[LeaseBody]
    ended: list[LeaseBody] = Field(description="The last ones, newest first.")
    profiles: list[ProfileBody] | None = Field(
        description="Null for a notebook, and before the hub has published its profiles."
    )


class LoadBody(Body):
    """What a device does."""

    used_mib: int | None
    reserved_mib: int | None = Field(description="Kept by the driver; not counted as used.")
    busy_percent: int | None
    temperature_c: int | None
    power_w: float | None
    power_limit_w: float | None


class DeviceBody(Body):
    """One GPU."""

    uuid: str
    host_id: str
    index: int | None = Field(description="For show only; it may change at a reboot.")
    model: str
    memory_mib: int | None
    headroom_mib: int = Field(description="Kept back from shares.")
    partitioned: bool | None
    simulated: bool
    observed_at: Moment | None
    load: LoadBody
    unavailable: TroubleBody | None


class Devices(Body):
    """All devices of the pool."""

    devices: list[DeviceBody]


class PoolSlice(SliceBody):
    """One part of a device, as the reader may see it."""

    shown: Shown = Field(description="Other people's are only busy.")
    used_mib: int | None
    user: str | None = Field(description="Whose, if it is one's own or one is an administrator.")
    server: str | None
    lease_id: int | None
    unavailable: TroubleBody | None


class Slices(Body):
    """All slices of the pool."""

    slices: list[PoolSlice]


class Leases(Body):
    """A page of leases, newest first."""

    leases: list[LeaseBody]
    next_before: int | None = Field(description="Send it as ``before`` for older ones.")


class ErrorDetail(Body):
    """What went wrong."""

    code: str
    message: str
    retry_at: Moment | None


class Error(Body):
    """The body of every refusal and error."""

    error: ErrorDetail
