"""Parts of ``benchmarks.coverage``: one module each, and the models that they ask about."""
