"""Prices the units of a model and whole plans in seconds, and sorts the bytes of a peak into categories."""
