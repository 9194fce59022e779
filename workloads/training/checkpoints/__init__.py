"""Checkpoints of trials: their names, which of them are kept, and how they are written and read."""
