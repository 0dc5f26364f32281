"""Runs migrations on the connection that `gpuspawner.ledger.migrate` hands over."""

from alembic import context

from gpuspawner.ledger.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
context.run_migrations()
