"""A gpuspawner of the future: one that has a migration more."""

import shutil
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from gpuspawner.ledger import migrate
from gpuspawner.ledger.store import Ledger, LedgerAwayError

NEXT = "9001"
_SCRIPT = f'''
"""A table more."""

import sqlalchemy as sa
from alembic import op

revision = "{NEXT}"
down_revision = "{{before}}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table("reservations", sa.Column("number", sa.Integer(), primary_key=True))
    op.execute("INSERT INTO reservations SELECT lease_id FROM leases")
    {{more}}
'''


def next_version(folder: Path, more: str = "") -> Path:
    """Write the scripts of the next version."""
    scripts = folder / "migrations"
    shutil.copytree(Path(migrate.__file__).parent / "migrations", scripts)
    text = _SCRIPT.format(before=migrate.newest_schema(), more=more)
    (scripts / "versions" / f"{NEXT}_more.py").write_text(text)
    return scripts


def become(scripts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn this process into one of the next version."""
    monkeypatch.setattr(migrate, "_SCRIPTS", scripts)


def open_as_the_next_version(pipe: Connection, url: str, scripts: Path) -> None:
    """Open a ledger when told, and say how many rows the new table has."""
    migrate._SCRIPTS = scripts
    ledger = Ledger(url)
    pipe.send("ready")
    pipe.recv()
    try:
        with ledger.read() as books:
            rows = books._connection.exec_driver_sql("SELECT count(*) FROM reservations")
            pipe.send(rows.scalar_one())
    except LedgerAwayError as error:
        pipe.send(str(error))
    ledger.close()
