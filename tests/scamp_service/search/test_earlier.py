"""Trials of earlier studies as the history of a new one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scamp_service.lifecycle import TrialState as S
from scamp_service.search.earlier import EarlierStudy, earlier_trials, from_json, to_json
from scamp_service.search.history import Observation
from scamp_service.search.proposals import Search
from tests.scamp_service.search.studies import SPACE, Trial, completed, live, study

SMALL = {name: SPACE[name] for name in ("lr", "depth")}
EARLIER = [replace(t, params={**t.params, "batch": 8}) for t in live(Search(study(SMALL, "random")), completed, 40)]


def test_trials_come_before_the_study_and_only_those_that_fit_its_space_count() -> None:
    spec = study({"depth": {"low": 1, "high": 6}, "batch": {"choice": [8, 16]}})
    earlier = earlier_trials(
        spec, [EarlierStudy(EARLIER), EarlierStudy([Trial(0, {"depth": 3}, S.COMPLETED, value=1.0)])]
    )
    ended = [trial for trial in EARLIER if trial.state is S.COMPLETED]
    assert len(earlier) == sum(int(trial.params["depth"]) <= 6 for trial in ended) > 10
    assert [trial.number for trial in earlier] == list(range(-len(earlier), 0))
    assert all(set(trial.params) == {"depth", "batch"} for trial in earlier)


def test_a_weight_takes_that_share_and_the_numbers_get_the_types_of_the_new_space() -> None:
    spec = study(SMALL)
    all_of, half = (earlier_trials(spec, [EarlierStudy(EARLIER, weight)]) for weight in (1.0, 0.5))
    assert len(half) == len(all_of) // 2 and earlier_trials(spec, [EarlierStudy(EARLIER, 0.5)]) == half
    long = [Trial(n, {"lr": 0.01, "depth": 2}, S.COMPLETED, value=float(n)) for n in range(1000)]
    assert len(earlier_trials(spec, [EarlierStudy(long, 0.5)])) == pytest.approx(250, abs=15)
    typed = earlier_trials(spec, [EarlierStudy([Trial(0, {"lr": 1, "depth": 2}, S.COMPLETED, value=1.0)])])
    assert typed == [Observation(-1, {"lr": 1.0, "depth": 2}, (1.0,))] and isinstance(typed[0].params["lr"], float)
    assert from_json(to_json(typed)) == typed


@pytest.mark.parametrize("sampler", [{"name": "tpe"}, {"name": "cmaes"}, {"name": "nsga2", "population_size": 10}])
def test_a_warm_start_finds_good_candidates_at_once_with_every_kind_of_sampler(sampler: dict[str, Any]) -> None:
    spec = study(SMALL, sampler)
    earlier = earlier_trials(spec, [EarlierStudy(live(Search(study(SMALL)), completed, 60))])

    def mean_distance(search: Search) -> float:
        return sum((int(params["depth"]) - 4) ** 2 for params in search.propose([], 0, 10)) / 10

    assert mean_distance(Search(spec, None, earlier)) < mean_distance(Search(spec))
    several = Search(spec, None, earlier).propose([], 0, 3)
    assert several == Search(spec, None, from_json(to_json(earlier))).propose([], 0, 3)
