"""Sends with a study the user's own files, or a class that has none."""
