"""The parts of ``benchmarks.estimators``."""
