"""Says when the trials of a study all fail, so that the study is stopped."""

from __future__ import annotations

from collections.abc import Mapping

from scamp_service.lifecycle import TrialState

BROKEN_AFTER = 3
"""A study is stopped after this many FAILED trials when no other trial has got further than WAITING."""
NOT_BEGUN = (TrialState.WAITING, TrialState.CANCELLED, TrialState.DELETED)
"""States that say nothing about how trials of a study end."""


def is_hopeless(counts: Mapping[TrialState, int]) -> bool:
    """Whether enough trials FAILED, and none did anything else, to expect that the next ones fail, too.

    ``counts`` are the study's own trials in each state.
    """
    failed = counts.get(TrialState.FAILED, 0)
    begun = sum(count for state, count in counts.items() if state not in NOT_BEGUN)
    return failed >= BROKEN_AFTER and failed == begun
