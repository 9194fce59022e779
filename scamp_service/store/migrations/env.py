"""Runs migrations on the connection that ``store.database`` passes in. The caller owns the transaction and the lock."""

from alembic import context

from scamp_service.store import schema

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=schema.metadata,
    version_table=schema.VERSION_TABLE,
)
context.run_migrations()
