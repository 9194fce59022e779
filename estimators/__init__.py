"""Predicts what a plan costs in memory and seconds, from fake traces. Pure, except ``tracing``, which imports torch."""
