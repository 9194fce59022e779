"""Models of ``benchmarks.coverage`` and how they are asked about. The cases of each part are in ``parts``."""
