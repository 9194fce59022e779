"""Formulas, found from traces of a few candidates, that predict the peaks of all others of the same architecture."""
