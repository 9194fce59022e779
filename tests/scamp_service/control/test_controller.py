"""The real controller, decisions, ledger and store on a cluster in virtual time, through every fault there is."""

from __future__ import annotations

from typing import Any

import pytest

from scamp_service.lifecycle import StudyState, TrialState
from scamp_service.store.store import Store
from tests.simulation import Faults, Simulation

SEEDS_AT_ONCE = 10


def check(seeds: range) -> None:
    crashes = 0
    for seed in seeds:
        store = Store("sqlite://")
        simulation = Simulation(store, seed)
        simulation.run()
        crashes += simulation.num_crashes
        store.close()
    assert crashes > 0, "the faults must happen, or this proves nothing"


@pytest.mark.parametrize("first", range(0, 60, SEEDS_AT_ONCE))
def test_no_trial_is_lost_or_counted_twice_under_faults(first: int) -> None:
    check(range(first, first + SEEDS_AT_ONCE))


@pytest.mark.soak
@pytest.mark.parametrize("first", range(60, 2060, 100))
def test_no_trial_is_lost_or_counted_twice_with_many_seeds(first: int) -> None:
    check(range(first, first + 100))


class Unfenced:
    """The mutant: reports are taken for whatever attempt the trial is in now, whoever sends them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in ("report", "report_outcome"):
            return method

        def unfenced(trial_id: int, attempt: int, token: str, *args: Any, **kwargs: Any) -> Any:
            newest = self._store.attempts(trial_id)[-1]
            return method(trial_id, newest.attempt, newest.token, *args, **kwargs)

        return unfenced


def test_without_the_fencing_token_the_simulation_fails() -> None:
    def fails(seed: int) -> bool:
        store = Store("sqlite://")
        try:
            Simulation(Unfenced(store), seed, Faults(late_report=0.5, kill_rank=0.1)).run()  # type: ignore[arg-type]
        except AssertionError:
            return True
        finally:
            store.close()
        return False

    assert any(map(fails, range(40)))


def test_without_faults_every_feasible_trial_finishes_in_its_first_attempt() -> None:
    store = Store("sqlite://")
    Simulation(store, 3, Faults(0, 0, 0, 0, 0, 0)).run()
    trials = [trial for study in store.studies() for trial in store.trials(study.id)]
    assert {trial.attempt for trial in trials if trial.state is TrialState.COMPLETED and not trial.num_oom} == {1}
    healed = [trial for trial in trials if trial.num_oom]
    assert healed and all(trial.attempt == trial.num_oom + 1 for trial in healed if trial.state is TrialState.COMPLETED)


def test_a_stored_study_that_cannot_be_read_fails_alone() -> None:
    store = Store("sqlite://")
    simulation = Simulation(store, 3, Faults(0, 0, 0, 0, 0, 0))
    spec = {**store.studies()[0].spec, "space": {"mib": {"from": 1}}}
    unreadable = store.create_study(spec, now=0.0)
    simulation.controller.tick()
    assert store.study(unreadable.id).state is StudyState.FAILED
    assert "submit it again" in store.study(unreadable.id).reason
    assert store.trials(1), "the other study goes on"
