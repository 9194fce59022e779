"""Parts of ``benchmarks.search``."""
