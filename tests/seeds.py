"""Searches for the seed on which a rare thing happens, so that tests keep their meaning when random draws change."""

from __future__ import annotations

from collections.abc import Callable

MOST_SEEDS = 60


def first_seed(happens: Callable[[int], bool], most: int = MOST_SEEDS) -> int:
    """The first seed for which it happens. Raises ``AssertionError`` if it does for none below ``most``."""
    for seed in range(most):
        if happens(seed):
            return seed
    raise AssertionError(f"it happens for none of {most} seeds, so the test shows nothing")
