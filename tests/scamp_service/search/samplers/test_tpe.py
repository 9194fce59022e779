"""TPE learns from what has ended, and stays away from what runs and from what cannot run."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from scamp_service.lifecycle import TrialState as S
from scamp_service.search import history
from scamp_service.search.proposals import Search
from scamp_service.search.samplers.optuna_study import OptunaStudy
from scamp_service.search.space import Space
from tests.scamp_service.search.studies import SPACE, Trial, completed, distance, live, study


def test_tpe_stays_away_from_where_trials_still_run() -> None:
    spec = study({"x": {"low": 0.0, "high": 1.0}})
    trials = live(Search(spec), lambda t: replace(t, state=S.COMPLETED, value=abs(float(t.params["x"]) - 0.5)), 30)
    crowd = [Trial(number, {"x": 0.5}) for number in range(30, 50)]

    def distance_from_crowd(history: list[Trial]) -> float:
        return sum(abs(float(params["x"]) - 0.5) for params in Search(spec).propose(history, 50, 10))

    gone = [replace(trial, state=S.CANCELLED) for trial in crowd]
    assert distance_from_crowd([*trials, *crowd]) > 1.1 * distance_from_crowd([*trials, *gone])


def test_tpe_learns_from_what_was_pruned() -> None:
    def distance_from_best(trial: Trial) -> float:
        return abs(float(trial.params["x"]) - 0.7)

    def pruned(trial: Trial) -> Trial:
        return replace(trial, state=S.PRUNED, step=10, value=distance_from_best(trial))

    late: list[Trial] = []
    for seed in range(3):
        spec = study({"x": {"low": 0.0, "high": 1.0}}, search={"seed": seed})
        late += live(Search(spec), pruned, 40)[25:]
    assert sum(map(distance_from_best, late)) / len(late) < 0.18, "chance would be 0.29"


def test_the_first_candidates_of_tpe_are_spread_at_random() -> None:
    proposed = Search(study()).propose([], 0, 10)
    assert len({params["lr"] for params in proposed}) == 10


def test_tpe_finds_better_candidates_than_chance() -> None:
    space = {name: SPACE[name] for name in ("lr", "depth")}
    tpe, chance = (live(Search(study(space, sampler)), completed, 60) for sampler in ("tpe", "random"))
    late_tpe, late_chance = (sum(distance(t.params) for t in trials[30:]) / 30 for trials in (tpe, chance))
    assert late_tpe < 0.5 * late_chance


def test_tpe_maximizes_when_told_to() -> None:
    spec = study({"x": {"low": 0.0, "high": 1.0}}, objective={"metric": "m", "direction": "maximize"})
    trials = live(Search(spec), lambda t: replace(t, state=S.COMPLETED, value=float(t.params["x"])), 40)
    assert sum(float(t.params["x"]) for t in trials[25:]) / 15 > 0.8


@pytest.mark.parametrize(
    "end", [{"state": S.INFEASIBLE}, {"state": S.COMPLETED, "value": math.nan}, {"state": S.PRUNED, "value": math.nan}]
)
def test_tpe_steers_away_from_what_cannot_run(end: dict[str, Any]) -> None:
    """The objective pulls towards deep models, which do not fit: they are tried less and less."""
    spec = study({"depth": {"low": 1, "high": 100}}, objective={"metric": "m", "direction": "maximize"})

    def too_deep(trial: Trial) -> Trial:
        depth = trial.params["depth"]
        assert isinstance(depth, int)
        return replace(trial, **end) if depth > 50 else replace(trial, state=S.COMPLETED, value=float(depth))

    trials = live(Search(spec), too_deep, 60)
    num_too_deep = sum(int(t.params["depth"]) > 50 for t in trials[30:])
    assert num_too_deep <= 20, "told nothing, it proposes 29 or 30 of these 30 too deep"
    assert max(int(t.params["depth"]) for t in trials[30:] if t.state is S.COMPLETED) >= 45


@pytest.mark.full
def test_a_thinned_history_still_leads_to_better_candidates_than_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    space = {name: SPACE[name] for name in ("lr", "depth")}
    monkeypatch.setattr(history, "MOST_SHOWN", 64)
    thinned, chance = (live(Search(study(space, sampler)), completed, 160) for sampler in ("tpe", "random"))
    late, at_random = (sum(distance(t.params) for t in trials[80:]) / 80 for trials in (thinned, chance))
    assert late < 0.6 * at_random


def test_optuna_knows_by_how_much_a_trial_exceeds_the_bounds_on_what_is_predicted() -> None:
    spec = study(SPACE, predicted={"peak_mib": {"max": 50}})
    (params,) = Search(spec).propose([], 0, 1)
    trial = Trial(0, params, S.INFEASIBLE, quantities={"peak_mib": 75.0})
    shown = history.observation_of(trial, spec.every_objective, spec.predicted)
    assert shown is not None
    frozen = OptunaStudy(Space(spec.space), spec.every_objective).frozen(shown)
    assert frozen.constraints == {"predicted.peak_mib.max": 0.5}
