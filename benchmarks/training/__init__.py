"""The parts of the benchmark of the runtime: features of training under every kind of plan."""
