"""A family whose memory the trace does not show, through the real controller, decisions and store in virtual time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from estimators.learning import PATIENCE_TRIALS
from estimators.model import MIB
from scamp_service.lifecycle import Outcome, TrialState
from scamp_service.model import Attempt, Json
from scamp_service.store.parts.attempts import Attempts
from scamp_service.store.store import Store
from scamp_service.store.tallies import prediction_errors_pct
from tests.quick_store import empty_store
from tests.simulation.faults import Faults, no_faults
from tests.simulation.simulation import Simulation

NO_FAULTS = no_faults()
TRIALS = 16
SEED = 2


def forget_families(monkeypatch: pytest.MonkeyPatch) -> None:
    """No past of families is kept: every trial learns from its own attempts only."""
    monkeypatch.setattr(Attempts, "family_runs", lambda attempts, family, num_trials: [])


class HiddenMemory(Simulation):
    """One study of one-rank candidates of 20 to 40 MiB by their traces; ``fixed`` says what each needs besides."""

    fixed: Mapping[str, float]
    max_concurrent: int
    trials: int
    ranks: Sequence[int]

    def __init__(
        self,
        store: Any,
        *,
        max_concurrent: int = 1,
        trials: int = TRIALS,
        ranks: Sequence[int] = (1,),
        faults: Faults = NO_FAULTS,
        after: HiddenMemory | None = None,
        **fixed: float,
    ) -> None:
        self.fixed, self.max_concurrent, self.trials, self.ranks = fixed, max_concurrent, trials, ranks
        super().__init__(store, SEED, faults)
        if after:  # what it has seen is checked at the end of this one, too
            self.world.completed, self.world.acknowledged = after.world.completed, after.world.acknowledged
        self.run()

    def num_later_studies(self) -> int:
        return 0

    def spec(self, number: int) -> Json:
        usual = super().spec(number)
        budget = {**usual["budget"], "trials": self.trials, "max_concurrent": self.max_concurrent}
        return {
            **usual,
            "space": {
                "mib": {"choice": [20, 30, 40]},
                "ranks": {"choice": list(self.ranks)},
                "lr": {"low": 0.001, "high": 0.1},
            },
            "fixed": self.fixed,
            "stopping": {"rule": "none"},
            "budget": budget,
        }

    def attempts(self) -> list[Attempt]:
        """Attempts of all studies of the store, as they began."""
        studies = self.store.studies.page()
        rows = [attempt for study in studies for attempt in self.store.attempts.of_study(study.id)]
        return sorted(rows, key=lambda attempt: (attempt.created_at, attempt.trial_id))

    def out_of_memory(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts() if attempt.outcome is Outcome.OUT_OF_MEMORY]


@pytest.fixture
def empty() -> Store:
    return empty_store()


def test_a_family_with_hidden_memory_is_out_of_memory_once_and_no_more(empty: Store) -> None:
    learning = HiddenMemory(empty, spike=15)
    assert learning.out_of_memory() == learning.attempts()[:1]
    trials = empty.trials.page(1)
    assert len(trials) == TRIALS and {trial.state for trial in trials} == {TrialState.COMPLETED}
    (teacher,) = (trial for trial in trials if trial.num_oom)
    later = [trial for trial in trials if trial is not teacher]
    assert {(trial.sized.learned_bytes, trial.prediction.extra_bytes) for trial in later if trial.sized} == {
        (teacher.prediction.extra_bytes,) * 2
    }
    assert "MiB learned from 1 trial of this family with layout single+accumulate, 1 of them out of memory" in str(
        later[0].sized and later[0].sized.reason
    )


def test_without_learning_every_trial_of_it_is_out_of_memory(empty: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_families(monkeypatch)
    forgetful = HiddenMemory(empty, spike=15)
    assert len(forgetful.out_of_memory()) == TRIALS


def test_of_trials_side_by_side_only_those_that_had_begun_are_out_of_memory(empty: Store) -> None:
    """The others of the first batch were planned before anything was known, and are planned anew."""
    learning = HiddenMemory(empty, max_concurrent=2, spike=15)
    assert len(learning.out_of_memory()) == 2


def test_the_error_of_a_family_whose_tensors_are_missed_shrinks_to_nothing(empty: Store) -> None:
    """Reserved is what is predicted (this executor knows no margin), so the first one fails, and is measured when it is
    healed. Those planned before three were measured have room enough, but no prediction of their tensors yet."""
    learning = HiddenMemory(empty, missed=10)
    exact = [attempt for attempt in learning.attempts() if attempt.outcome is Outcome.DONE]
    errors = prediction_errors_pct(exact)
    assert learning.out_of_memory() == learning.attempts()[:1]
    assert len(exact) == TRIALS
    assert errors[0] <= -20 and errors[8:] == [0.0] * (TRIALS - 8)
    assert {attempt.prediction.bias_bytes for attempt in exact[8:]} == {10 * MIB}


def test_without_learning_the_error_of_the_trace_stays(empty: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_families(monkeypatch)
    forgetful = HiddenMemory(empty, missed=10)
    exact = [attempt for attempt in forgetful.attempts() if attempt.outcome is Outcome.DONE]
    assert all(error <= -20 for error in prediction_errors_pct(exact))


@pytest.mark.full
def test_candidates_that_the_learned_bytes_would_not_fit_run_without_them(empty: Store) -> None:
    learning = HiddenMemory(empty, spike=60)
    trials = empty.trials.page(1)
    assert {trial.state for trial in trials} == {TrialState.COMPLETED, TrialState.INFEASIBLE}
    tried = {trial.id for trial in trials if trial.attempt}
    assert len(tried) == TRIALS, "each was tried with what its own trace asks for"
    assert learning.out_of_memory()


def test_a_fault_of_gangs_raises_no_reservation_of_single_ranks(empty: Store) -> None:
    learning = HiddenMemory(empty, trials=24, ranks=(1, 2), gang_spike=30)
    (failure,) = learning.out_of_memory()
    assert failure.plan.world_size == 2
    singles = [attempt for attempt in learning.attempts() if attempt.plan.world_size == 1]
    assert len(singles) > 8 and {attempt.prediction.extra_bytes for attempt in singles} == {0}


@pytest.mark.full
def test_an_accident_of_one_trial_is_forgotten_by_halves_as_others_finish(empty: Store) -> None:
    learning = HiddenMemory(empty, trials=3 * PATIENCE_TRIALS, accident=30)
    (failure,) = learning.out_of_memory()
    assert failure.trial_id == 1
    later = [attempt for attempt in learning.attempts() if attempt.created_at > failure.created_at]
    added = [attempt.prediction.extra_bytes for attempt in later]
    assert added == sorted(added, reverse=True) and 0 < added[-1] <= added[0] // 4


@pytest.mark.full
def test_what_is_needed_after_all_costs_a_failure_after_16_trials_and_again_after_32(empty: Store) -> None:
    learning = HiddenMemory(empty, trials=64, spike=30)
    failed = [index for index, attempt in enumerate(learning.attempts()) if attempt.outcome is Outcome.OUT_OF_MEMORY]
    assert len(failed) == 3 and failed[0] == 0
    assert failed[1] >= PATIENCE_TRIALS and failed[2] >= 2 * PATIENCE_TRIALS


def test_step_times_are_predicted_as_measured_after_three_trials_and_stay_so(empty: Store) -> None:
    attempts = HiddenMemory(empty, slow=1.75).attempts()
    assert {attempt.measured_step_seconds for attempt in attempts} == {1.75}
    predicted = [attempt.choice.step_seconds for attempt in attempts]
    assert predicted[:3] == [1.0] * 3 and predicted[8:] == [1.75] * (TRIALS - 8)
    assert {attempt.choice.step_factor for attempt in attempts[8:]} == {1.75}, "not learned from its own correction"


def test_step_times_of_gangs_say_nothing_about_one_rank(empty: Store) -> None:
    study = HiddenMemory(empty, trials=24, ranks=(1, 2), slow=1.75)
    for num_ranks in (1, 2):
        of_gangs = [attempt for attempt in study.attempts() if attempt.plan.world_size == num_ranks]
        assert len(of_gangs) > 8 and [attempt.choice.step_factor for attempt in of_gangs[:3]] == [1.0] * 3
        assert of_gangs[-1].choice.step_factor == 1.75


def test_what_one_study_has_learned_the_next_one_knows(empty: Store) -> None:
    second = HiddenMemory(empty, after=HiddenMemory(empty, trials=8, spike=15), trials=8, spike=15)
    assert len(empty.studies.page()) == 2
    assert second.out_of_memory() == second.attempts()[:1]


def test_controllers_that_crash_decide_the_same_of_what_was_learned(empty: Store) -> None:
    faults = replace(NO_FAULTS, crash=0.05)
    learning = HiddenMemory(empty, faults=faults, spike=15)
    assert learning.num_crashes > 0
    assert learning.out_of_memory() == learning.attempts()[:1]
