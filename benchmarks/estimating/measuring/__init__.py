"""Measures the memory of a step in independent ways."""
