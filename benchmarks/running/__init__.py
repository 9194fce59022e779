"""Runs the parts of a benchmark, keeps their results, and writes its page."""
