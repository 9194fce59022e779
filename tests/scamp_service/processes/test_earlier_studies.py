"""Earlier studies that a study names are found by name or id, with the trials that count."""

from __future__ import annotations

from typing import Any

import pytest

from scamp_service.lifecycle import TrialState
from scamp_service.processes.earlier_studies import earlier_of
from scamp_service.search.proposer import SearchEnded
from scamp_service.study.parse import parse_study
from tests.quick_store import empty_store
from tests.studies import study


def test_the_newest_earlier_study_with_a_name_is_the_history_of_a_new_one() -> None:
    def created(name: str, direction: str = "maximize", depth: int = 1) -> int:
        goal, space = {"metric": "m", "direction": direction}, {"depth": {"low": 1, "high": 9}}
        spec = parse_study(study(name=name, objective=goal, space=space)).to_json()
        study_row = store.studies.create(spec, now=1.0)
        store.trials.create(study_row.id, [(0, {"depth": depth})], now=1.0)
        (trial,) = store.trials.page(study_row.id)
        store.trials.move(trial.id, trial.state, trial.attempt, TrialState.INFEASIBLE, now=2.0)
        return study_row.id

    store = empty_store()
    first, second = created("old", depth=1), created("old", depth=2)
    other = created("other", "minimize")
    newest = created("old", depth=3)

    def earlier(name_or_id: str | int) -> list[Any]:
        spec = parse_study({**store.studies.get(newest).spec, "search": {"history": [{"study": name_or_id}]}})
        return [dict(row.params) for row in earlier_of(store, newest, spec)]

    assert earlier("old") == earlier(second) == [{"depth": 2}] and earlier(first) == [{"depth": 1}]
    for name, words in (
        ("absent", "there is none before this one"),
        (newest, "none before"),
        (other, "the objective"),
    ):
        with pytest.raises(SearchEnded, match=words):
            earlier(name)
