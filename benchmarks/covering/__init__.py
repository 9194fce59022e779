"""Which models and mistakes `scamp estimate` covers, measured by `python -m benchmarks.coverage`."""
