"""The parts of the benchmark of the planner."""
