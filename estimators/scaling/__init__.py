"""Formulas that give the peaks of many candidates of one architecture from traces of a few."""
