"""Proposes candidates from a search space."""
