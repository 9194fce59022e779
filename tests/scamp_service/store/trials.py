"""Trials and reports for the tests of the store."""

from __future__ import annotations

from typing import Any

from estimators.model import Plan
from scamp_service.lifecycle import AttemptState, TrialState
from scamp_service.model import Metric, Report
from scamp_service.store.store import Store
from tests.values import new_attempt, sized

SPEC = {"name": "digits", "objective": {"metric": "acc", "direction": "maximize"}, "space": {"lr": {"low": 1e-4}}}
PLAN = Plan(8, dp_shard=2)
SIZED = sized(PLAN, 40, 30_000_000)


def new_trial(store: Store, number: int = 0, params: dict[str, Any] | None = None) -> int:
    """A WAITING trial of the first study."""
    if not store.studies():
        store.create_study(SPEC, now=1.0)
    store.create_trials(1, [(number, params or {"lr": 0.1})], now=2.0)
    return store.trials(1)[-1].id


def queue(store: Store, trial_id: int) -> None:
    trial = store.trial(trial_id)
    assert store.move_trial(trial_id, trial.state, trial.attempt, TrialState.QUEUED, sized=SIZED, now=3.0)


def begin(store: Store, trial_id: int, attempt: int = 1, *, now: float = 4.0) -> bool:
    return store.begin_attempt(
        new_attempt(
            trial_id,
            attempt,
            token=f"token-{attempt}",
            plan=PLAN,
            devices=("n0/0", "n0/1"),
            reserved_mib=40,
            predicted_bytes=30_000_000,
            placement_reason="both on one node",
            now=now,
        )
    )


def run(store: Store, number: int = 0) -> int:
    """A trial whose first attempt runs, with token ``token-1``."""
    trial_id = new_trial(store, number)
    queue(store, trial_id)
    assert begin(store, trial_id)
    assert store.report_started(trial_id, 1, "token-1", now=5.0)
    return trial_id


def retry(store: Store, trial_id: int, attempt: int) -> None:
    """End attempt ``attempt - 1`` and run the next."""
    assert store.move_trial(trial_id, TrialState.RUNNING, attempt - 1, TrialState.QUEUED, now=6.0)
    assert store.move_attempt(trial_id, attempt - 1, [AttemptState.RUNNING], AttemptState.ENDED, now=7.0)
    assert begin(store, trial_id, attempt, now=8.0)
    assert store.report_started(trial_id, attempt, f"token-{attempt}", now=9.0)


def metric(trial_id: int, seq: int, step: int, acc: float, attempt: int = 1) -> Metric:
    return Metric(trial_id, attempt, seq, step, {"acc": acc, "loss": 1.0}, 6.0)


def report(store: Store, *rows: Metric) -> bool:
    first = rows[0]
    return store.report(
        Report(first.trial_id, first.attempt, f"token-{first.attempt}", metrics=rows, objectives=["acc"]),
        now=6.0,
    )


def contents(store: Store) -> list[object]:
    """Everything, to see that nothing has changed."""
    trials = [trial for study in store.studies() for trial in store.trials(study.id)]
    of_trials = [(store.attempts(t.id), store.metrics(t.id), store.logs(t.id)) for t in trials]
    return [store.studies(), trials, of_trials, store.events(limit=10_000), store.cluster()]
