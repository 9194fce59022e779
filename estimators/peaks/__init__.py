"""Turns logs of allocations into peak bytes: envelopes, depth, a replay of the CUDA allocator, units of a model."""
