"""Long histories are shown to a sampler in part."""

from __future__ import annotations

import optuna
import pytest

from examples.bounded_sampler import BoundedSampler


def test_a_bounded_sampler_sees_the_best_of_a_long_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("examples.bounded_sampler.MOST_SHOWN", 40)
    seen: list[list[int]] = []

    class Watching(optuna.samplers.RandomSampler):
        def infer_relative_search_space(self, study, trial):
            seen.append([row.number for row in study.get_trials(deepcopy=False)])
            return {}

    study = optuna.create_study(sampler=BoundedSampler(Watching(seed=0)))
    study.add_trials([optuna.create_trial(value=(number * 7919) % 1000) for number in range(1000)])
    study.ask().suggest_float("x", 0, 1)
    best = sorted(range(1000), key=lambda number: (number * 7919) % 1000)[:25]
    assert seen == [sorted({*range(0, 1001, 32), *best, 1000})]


def test_a_bounded_sampler_sees_what_has_changed_since_it_was_last_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("examples.bounded_sampler.MOST_SHOWN", 40)
    seen: list[set[int]] = []

    class Watching(optuna.samplers.RandomSampler):
        def infer_relative_search_space(self, study, trial):
            seen.append({row.number for row in study.get_trials(deepcopy=False)})
            return {}

    study = optuna.create_study(sampler=BoundedSampler(Watching(seed=0)))
    study.add_trials([optuna.create_trial(value=100.0 + number) for number in range(200)])
    first, second = study.ask(), study.ask()
    study.tell(first, -1.0)  # the best, and it ends while the one after it runs
    study.ask().suggest_float("x", 0, 1)
    assert {first.number, second.number, *range(24)} <= seen[-1] and 25 not in seen[-1]
    study.tell(second, state=optuna.trial.TrialState.FAIL)
    study.ask().suggest_float("x", 0, 1)
    assert second.number not in seen[-1] and first.number in seen[-1]
