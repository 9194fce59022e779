"""The study database: schema, migrations, writes, reads and summaries."""
