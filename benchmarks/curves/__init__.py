"""Trains model idioms under every kind of plan, and compares their curves; ``benchmarks.same_curve`` is the command."""
