"""Parts of ``benchmarks.planner``."""
