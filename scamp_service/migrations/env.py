"""Runs migrations on the connection that ``scamp_service.database`` hands over; that one owns transaction and lock."""

from alembic import context

from scamp_service.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
