"""The first tables: pool, hosts, cordons, leases, holds, audit."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("audit_id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.String(length=300), nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("lease_id", sa.Integer(), nullable=True),
        sa.Column("target", sa.String(length=255), nullable=True),
        sa.Column("reason", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("detail", sa.JSON(none_as_null=True), nullable=True),
        sa.PrimaryKeyConstraint("audit_id", name=op.f("pk_audit")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_at", "audit", ["at"], unique=False)
    op.create_index("ix_audit_lease_id", "audit", ["lease_id"], unique=False)
    op.create_table(
        "cordons",
        sa.Column("target_uuid", sa.String(length=128), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("actor", sa.String(length=255), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("target_uuid", name=op.f("pk_cordons")),
    )
    op.create_table(
        "hosts",
        sa.Column("host_id", sa.String(length=128), nullable=False),
        sa.Column("observed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("inventory", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("host_id", name=op.f("pk_hosts")),
    )
    op.create_table(
        "leases",
        sa.Column("lease_id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("hub_id", sa.String(length=64), nullable=False),
        sa.Column("user_name", sa.String(length=255), nullable=False),
        sa.Column("server_name", sa.String(length=255), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("profile", sa.Text(), nullable=False),
        sa.Column("image", sa.Text(), nullable=True),
        sa.Column("engine", sa.String(length=16), nullable=False),
        sa.Column("may_wait", sa.Boolean(), nullable=False),
        sa.Column("start_seconds", sa.Integer(), nullable=False),
        sa.Column("requested_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("granted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("running_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("start_deadline", sa.DateTime(timezone=True), nullable=True),
        sa.Column("detached_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("look_again_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_seen_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_source", sa.String(length=16), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("fence", sa.BigInteger(), nullable=True),
        sa.Column("run_id", sa.String(length=128), nullable=True),
        sa.Column("engine_id", sa.String(length=128), nullable=True),
        sa.Column("reason", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("slices", sa.JSON(none_as_null=True), nullable=True),
        sa.CheckConstraint(
            "(state = 'ended') = (ended_at IS NOT NULL)", name=op.f("ck_leases_ended")
        ),
        sa.CheckConstraint(
            "state NOT IN ('granted', 'running', 'ending') OR fence IS NOT NULL",
            name=op.f("ck_leases_held"),
        ),
        sa.CheckConstraint(
            "state in ('waiting', 'granted', 'running', 'ending', 'ended')",
            name=op.f("ck_leases_state"),
        ),
        sa.CheckConstraint("(granted_at IS NULL) = (fence IS NULL)", name=op.f("ck_leases_fenced")),
        sa.PrimaryKeyConstraint("lease_id", name=op.f("pk_leases")),
        sa.UniqueConstraint("fence", name=op.f("uq_leases_fence")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_leases_state", "leases", ["state"], unique=False)
    op.create_index("ix_leases_user", "leases", ["hub_id", "user_name", "lease_id"], unique=False)
    op.create_index(
        "uq_leases_living_server",
        "leases",
        ["hub_id", "user_name", "server_name"],
        unique=True,
        sqlite_where=sa.text("state IN ('waiting', 'granted', 'running', 'ending')"),
        postgresql_where=sa.text("state IN ('waiting', 'granted', 'running', 'ending')"),
    )
    op.create_table(
        "occupied_devices",
        sa.Column("device_uuid", sa.String(length=128), nullable=False),
        sa.Column("mode", sa.String(length=16), nullable=False),
        sa.PrimaryKeyConstraint("device_uuid", name=op.f("pk_occupied_devices")),
        sa.UniqueConstraint(
            "device_uuid", "mode", name=op.f("uq_occupied_devices_device_uuid_mode")
        ),
    )
    op.create_table(
        "pool",
        sa.Column("pool_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("policy", sa.Text(), nullable=True),
        sa.Column("published_by", sa.String(length=64), nullable=True),
        sa.Column("published_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("pool_id = 1", name=op.f("ck_pool_one_row")),
        sa.PrimaryKeyConstraint("pool_id", name=op.f("pk_pool")),
    )
    op.create_table(
        "holds",
        sa.Column("device_uuid", sa.String(length=128), nullable=False),
        sa.Column("unit", sa.String(length=128), nullable=False),
        sa.Column("mode", sa.String(length=16), nullable=False),
        sa.Column("lease_id", sa.Integer(), nullable=False),
        sa.Column("host_id", sa.String(length=128), nullable=False),
        sa.Column("memory_mib", sa.Integer(), nullable=True),
        sa.Column("compute_percent", sa.Integer(), nullable=True),
        sa.Column("instance_profile", sa.String(length=64), nullable=True),
        sa.Column("model", sa.String(length=128), nullable=False),
        sa.Column("group_name", sa.String(length=255), nullable=True),
        sa.CheckConstraint("(mode = 'whole') = (unit = 'whole')", name=op.f("ck_holds_whole_unit")),
        sa.CheckConstraint("memory_mib IS NULL OR memory_mib > 0", name=op.f("ck_holds_memory")),
        sa.ForeignKeyConstraint(
            ["device_uuid", "mode"],
            ["occupied_devices.device_uuid", "occupied_devices.mode"],
            name=op.f("fk_holds_device_uuid_mode"),
        ),
        sa.ForeignKeyConstraint(["lease_id"], ["leases.lease_id"], name=op.f("fk_holds_lease_id")),
        sa.PrimaryKeyConstraint("device_uuid", "unit", name=op.f("pk_holds")),
    )
    op.create_index("ix_holds_lease_id", "holds", ["lease_id"], unique=False)
    op.create_table(
        "strays",
        sa.Column("host_id", sa.String(length=128), nullable=False),
        sa.Column("engine", sa.String(length=16), nullable=False),
        sa.Column("run_id", sa.String(length=128), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("devices", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("host_id", "engine", "run_id", name=op.f("pk_strays")),
    )
    op.create_table(
        "engines",
        sa.Column("host_id", sa.String(length=128), nullable=False),
        sa.Column("engine", sa.String(length=16), nullable=False),
        sa.Column("answered_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("silent_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("host_id", "engine", name=op.f("pk_engines")),
    )
    op.execute("INSERT INTO pool (pool_id, fence) VALUES (1, 0)")
