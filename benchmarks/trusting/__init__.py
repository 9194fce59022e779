"""Parts of the benchmark of what can be trusted under faults."""
