"""Predicts many candidates of a space at once, by formulas over a few traces."""
