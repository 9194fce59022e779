"""Chooses the plan of one candidate: how many ranks, which micro-batch, what is recomputed."""
