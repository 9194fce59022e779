"""Traces of candidates: made in child processes, cached, and counted while they are under way."""
