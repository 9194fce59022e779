"""The parts of ``benchmarks.trust``."""
