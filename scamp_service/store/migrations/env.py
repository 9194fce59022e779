"""Runs migrations on the connection that ``store.database`` passes in. The caller owns the transaction and the lock."""

from alembic import context

from scamp_service.store.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
