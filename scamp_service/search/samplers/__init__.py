"""Samplers: each proposes the parameters of one trial from those of the earlier ones."""
