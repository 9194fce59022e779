"""The parts of ``benchmarks.estimators``, one module each, and what they share."""
