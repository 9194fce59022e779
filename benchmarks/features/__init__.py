"""Features of the workload protocol, each trained under many plans; ``benchmarks.runtime`` is the command."""
