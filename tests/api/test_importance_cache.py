"""Importances are computed again only when they may have changed."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from api.importance_cache import ImportanceCache
from scamp_service.lifecycle import StudyState, TrialState
from scamp_service.model import Study


class Counts:
    """The part of the store that the cache reads."""

    def __init__(self) -> None:
        self.completed = 100

    def states(self, study_id: int) -> Mapping[TrialState, int]:
        return {TrialState.COMPLETED: self.completed // 2, TrialState.PRUNED: self.completed - self.completed // 2}


class Counting(ImportanceCache):
    num_computed = 0

    def _computed(self, study: Study) -> tuple[int, Mapping[str, float]]:
        self.num_computed += 1
        return 10, {"lr": 1.0}


def study(state: StudyState) -> Study:
    return Study(1, "name", state, {}, 0.0)


@pytest.mark.parametrize(("state", "expected"), [(StudyState.RUNNING, [1, 1, 2]), (StudyState.COMPLETED, [1, 2, 3])])
def test_a_running_study_is_judged_again_after_a_fiftieth_more_trials(state: StudyState, expected: list[int]) -> None:
    ended = Counts()
    store: Any = SimpleNamespace(counts=ended)
    cache = Counting(store)
    counts = []
    for completed in (100, 101, 104):
        ended.completed = completed
        cache.of(study(state))
        cache.of(study(state))
        counts.append(cache.num_computed)
    assert counts == expected
