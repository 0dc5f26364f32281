"""The ledger's tables. No behaviour; constraints stand behind the rules of `gpuspawner.domain`.

``holds`` has the living holds only: a unit of a device is held at most once (primary key), and
all holds of a device have the mode that ``occupied_devices`` records for it (foreign key), so the
database itself refuses a whole device that is also shared. What a lease held stays in its row.
"""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator


class UTCDateTime(TypeDecorator[datetime]):
    """An aware UTC time; SQLite stores it without zone, so the zone is put back on reading."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - the base class's signature
        """Refuse a naive time; store UTC."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"expected an aware time, got {value!r}")
        return value.astimezone(UTC)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - the base class's signature
        """Return aware UTC."""
        if value is None:
            return None
        assert isinstance(value, datetime)
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}

metadata = MetaData(naming_convention=NAMING)

LIVE_STATES = "('waiting', 'granted', 'running', 'ending')"

pool = Table(
    "pool",
    metadata,
    Column("pool_id", Integer, primary_key=True, autoincrement=False),
    Column("fence", BigInteger, nullable=False),
    Column("policy", Text),
    Column("published_by", String(64)),
    Column("published_at", UTCDateTime),
    CheckConstraint("pool_id = 1", name="one_row"),
)

hosts = Table(
    "hosts",
    metadata,
    Column("host_id", String(128), primary_key=True),
    Column("observed_at", UTCDateTime, nullable=False),
    Column("inventory", Text, nullable=False),
    Column("attribution", Text),  # whose the processes were in the same look
)

cordons = Table(
    "cordons",
    metadata,
    Column("target_uuid", String(128), primary_key=True),
    Column("note", Text, nullable=False),
    Column("actor", String(255), nullable=False),
    Column("since", UTCDateTime, nullable=False),
)

leases = Table(
    "leases",
    metadata,
    Column("lease_id", Integer, primary_key=True, autoincrement=True),
    Column("hub_id", String(64), nullable=False),
    Column("user_name", String(255), nullable=False),
    Column("server_name", String(255), nullable=False),
    Column("state", String(16), nullable=False),
    Column("profile", Text, nullable=False),
    Column("image", Text),
    Column("engine", String(16), nullable=False),
    Column("may_wait", Boolean, nullable=False),
    Column("start_seconds", Integer, nullable=False),
    Column("requested_at", UTCDateTime, nullable=False),
    Column("granted_at", UTCDateTime),
    Column("running_at", UTCDateTime),
    Column("start_deadline", UTCDateTime),
    Column("detached_at", UTCDateTime),
    Column("look_again_at", UTCDateTime),
    Column("last_seen_at", UTCDateTime),
    Column("finished_at", UTCDateTime),
    Column("finished_source", String(16)),
    Column("ended_at", UTCDateTime),
    Column("fence", BigInteger, unique=True),
    Column("run_id", String(128)),
    Column("engine_id", String(128)),
    Column("reason", JSON(none_as_null=True)),
    Column("slices", JSON(none_as_null=True)),
    CheckConstraint("state in ('waiting', 'granted', 'running', 'ending', 'ended')", name="state"),
    CheckConstraint("(state = 'ended') = (ended_at IS NOT NULL)", name="ended"),
    CheckConstraint("(granted_at IS NULL) = (fence IS NULL)", name="fenced"),
    CheckConstraint(
        "state NOT IN ('granted', 'running', 'ending') OR fence IS NOT NULL", name="held"
    ),
    # One server has at most one living lease: nobody is in the queue twice.
    Index(
        "uq_leases_living_server",
        "hub_id",
        "user_name",
        "server_name",
        unique=True,
        sqlite_where=text(f"state IN {LIVE_STATES}"),
        postgresql_where=text(f"state IN {LIVE_STATES}"),
    ),
    Index("ix_leases_state", "state"),
    Index("ix_leases_user", "hub_id", "user_name", "lease_id"),
    sqlite_autoincrement=True,
)

occupied_devices = Table(
    "occupied_devices",
    metadata,
    Column("device_uuid", String(128), primary_key=True),
    Column("mode", String(16), nullable=False),
    UniqueConstraint("device_uuid", "mode"),
)

holds = Table(
    "holds",
    metadata,
    Column("device_uuid", String(128), primary_key=True),
    Column("unit", String(128), primary_key=True),
    Column("mode", String(16), nullable=False),
    Column("lease_id", Integer, ForeignKey("leases.lease_id"), nullable=False),
    Column("host_id", String(128), nullable=False),
    Column("memory_mib", Integer),
    Column("compute_percent", Integer),
    Column("instance_profile", String(64)),
    Column("model", String(128), nullable=False),
    Column("group_name", String(255)),
    ForeignKeyConstraint(
        ["device_uuid", "mode"], ["occupied_devices.device_uuid", "occupied_devices.mode"]
    ),
    CheckConstraint("(mode = 'whole') = (unit = 'whole')", name="whole_unit"),
    CheckConstraint("memory_mib IS NULL OR memory_mib > 0", name="memory"),
    Index("ix_holds_lease_id", "lease_id"),
)

# What runs with a device and has no lease in these books: never touched, and its devices are not
# handed out meanwhile. ``devices`` NULL: it has all of the host, or which ones cannot be told.
strays = Table(
    "strays",
    metadata,
    Column("host_id", String(128), primary_key=True),
    Column("engine", String(16), primary_key=True),
    Column("run_id", String(128), primary_key=True),
    Column("name", Text, nullable=False),
    Column("devices", JSON(none_as_null=True)),
    Column("since", UTCDateTime, nullable=False),
)

# How each engine answered its host's agent last.
engines = Table(
    "engines",
    metadata,
    Column("host_id", String(128), primary_key=True),
    Column("engine", String(16), primary_key=True),
    Column("answered_at", UTCDateTime),
    Column("silent_since", UTCDateTime),
    Column("detail", Text, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("audit_id", Integer, primary_key=True, autoincrement=True),
    Column("at", UTCDateTime, nullable=False),
    Column("actor", String(300), nullable=False),  # a person's name and what kind of actor it is
    Column("action", String(32), nullable=False),
    Column("lease_id", Integer),
    Column("target", String(255)),
    Column("reason", JSON(none_as_null=True)),
    Column("detail", JSON(none_as_null=True)),
    Index("ix_audit_lease_id", "lease_id"),
    Index("ix_audit_at", "at"),
    sqlite_autoincrement=True,
)
