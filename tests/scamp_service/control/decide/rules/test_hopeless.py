"""A study whose first trials all fail is stopped."""

from __future__ import annotations

import pytest

from scamp_service.control.decide.rules.hopeless import is_hopeless
from scamp_service.lifecycle import TrialState as S


@pytest.mark.parametrize(
    ("counts", "hopeless"),
    [
        ({}, False),
        ({S.FAILED: 2}, False),
        ({S.FAILED: 3, S.WAITING: 4, S.CANCELLED: 1}, True),
        ({S.FAILED: 3, S.INFEASIBLE: 1}, False),
        ({S.FAILED: 5, S.RUNNING: 1}, False),
    ],
)
def test_a_study_whose_first_trials_all_failed_is_hopeless(counts: dict[S, int], hopeless: bool) -> None:
    assert is_hopeless(counts) is hopeless
