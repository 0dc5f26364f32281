"""Bring a ledger to the newest schema: one process migrates under a lock, the others wait."""

from collections.abc import Callable
from pathlib import Path
from threading import Lock

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from gpuspawner.ledger.errors import NewerSchemaError, OlderSchemaError

__all__ = ["NewerSchemaError", "check_schema", "migrate", "newest_schema", "schema_of"]

# Any number that no other program on the same database uses for its advisory locks.
_POSTGRESQL_LOCK = 7_113_405_118
_ALEMBIC = Lock()  # it keeps the migration that runs in a global
_SCRIPTS = Path(__file__).parent / "migrations"


def migrate(connection: Connection, before_upgrade: Callable[[str], None] | None = None) -> None:
    """Upgrade inside the transaction that ``connection`` is in (DDL is transactional in both).

    The caller's transaction is the lock on SQLite (BEGIN IMMEDIATE); on PostgreSQL an advisory
    lock is taken for its length. ``before_upgrade`` is called with the new schema's name when there
    is something to lose; what it raises stops the upgrade.

    Raises:
        NewerSchemaError: the ledger's schema is not one that this version knows.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _POSTGRESQL_LOCK})
    present, newest = schema_of(connection), newest_schema()
    if present == newest:
        return
    if present is not None and before_upgrade is not None:
        before_upgrade(newest)
    config = _config()
    config.attributes["connection"] = connection
    with _ALEMBIC:
        command.upgrade(config, "head")


def check_schema(connection: Connection) -> str:
    """Return the ledger's schema, which must be this version's; for who must not upgrade.

    Raises:
        NewerSchemaError: it is newer, or these are no books of ours.
        OlderSchemaError: it is older.
    """
    present, newest = schema_of(connection), newest_schema()
    if present is None:
        raise NewerSchemaError("this is no ledger of gpuspawner: it has none of its tables")
    if present != newest:
        raise OlderSchemaError(
            f"the ledger has schema {present!r}, older than {newest!r} of this version of "
            "gpuspawner: the hub or the agent upgrades it when it opens it"
        )
    return newest


def newest_schema() -> str:
    """Return the schema of this version."""
    newest = ScriptDirectory.from_config(_config()).get_current_head()
    assert newest is not None
    return newest


def schema_of(connection: Connection) -> str | None:
    """Return the schema of the ledger, one that this version knows; None where nothing is.

    Raises:
        NewerSchemaError: it does not know it.
    """
    present = MigrationContext.configure(connection).get_current_revision()
    if present is None:
        return None
    if not inspect(connection).has_table("leases"):
        raise NewerSchemaError(f"this is no ledger: the schema {present!r} is another program's")
    script = ScriptDirectory.from_config(_config())
    if present not in {item.revision for item in script.walk_revisions()}:
        raise NewerSchemaError(
            f"the ledger has schema {present!r}, which this version of gpuspawner does not know; "
            "it was written by a newer one: install that, or restore a backup"
        )
    return present


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    return config
