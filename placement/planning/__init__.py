"""Chooses the plan of one candidate for a study: how many ranks, which micro-batch, what is recomputed.

A ``Question`` goes in. A ``Spread`` is a way to divide the candidate, a ``Row`` such a way with its price, and an
``Option`` its best plan with the bytes of one rank. A ``ChosenPlan`` comes out, with the options it was compared with.
"""
