"""From logs of allocations to peak bytes: envelopes, depth, replay of the CUDA allocator, units of a model."""
