"""Runs migrations on the connection that ``store.database`` hands over; that one owns transaction and lock."""

from alembic import context

from scamp_service.store.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
