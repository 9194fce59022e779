"""Measures how fast a device performs each kind of operation."""
