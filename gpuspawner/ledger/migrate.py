"""Bring a ledger to the newest schema: one process migrates under a lock, the others wait."""

from pathlib import Path
from threading import Lock

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

# Any number that no other program on the same database uses for its advisory locks.
_POSTGRESQL_LOCK = 7_113_405_118
_ALEMBIC = Lock()  # it keeps the migration that runs in a global


class NewerSchemaError(RuntimeError):
    """The ledger was written by a newer gpuspawner: going on could damage it."""


def migrate(connection: Connection) -> None:
    """Upgrade inside the transaction that ``connection`` is in (DDL is transactional in both).

    The caller's transaction is the lock on SQLite (BEGIN IMMEDIATE); on PostgreSQL an advisory
    lock is taken for its length.

    Raises:
        NewerSchemaError: the ledger's revision is not one that this version knows.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _POSTGRESQL_LOCK})
    config = _config(connection)
    script = ScriptDirectory.from_config(config)
    present = MigrationContext.configure(connection).get_current_revision()
    if present == script.get_current_head():
        return
    if present is not None and present not in {item.revision for item in script.walk_revisions()}:
        raise NewerSchemaError(
            f"the ledger has schema {present!r}, which this version of gpuspawner does not know; "
            "it was written by a newer one: install that, or restore a backup"
        )
    with _ALEMBIC:
        command.upgrade(config, "head")


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    return config
