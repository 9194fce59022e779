"""From a workload's data to the micro-batches of one rank, and from its outputs to metrics of the whole set."""
