"""Measures how fast a device runs each kind of operation."""
