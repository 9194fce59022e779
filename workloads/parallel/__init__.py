"""Spreads a model over ranks: one file per parallel axis, and ``apply``, which combines them."""
