"""The parts of the coverage benchmark: each has cases, how one is measured, and its table."""
