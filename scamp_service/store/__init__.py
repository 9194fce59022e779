"""The study database: schema, migrations, its parts, and summaries."""
