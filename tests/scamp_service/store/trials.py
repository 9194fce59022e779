"""Trials and reports for the tests of the store."""

from __future__ import annotations

from typing import Any

from estimators.model import Plan
from scamp_service.lifecycle import AttemptState, TrialState
from scamp_service.model import Metric, Report, TrialChanges
from scamp_service.store.store import Store
from tests.values import new_attempt, sized

SPEC = {"name": "digits", "objective": {"metric": "acc", "direction": "maximize"}, "space": {"lr": {"low": 1e-4}}}
PLAN = Plan(8, dp_shard=2)
SIZED = sized(PLAN, 40, 30_000_000)


def new_trial(store: Store, number: int = 0, params: dict[str, Any] | None = None) -> int:
    """A WAITING trial of the first study."""
    if not store.studies.page():
        store.studies.create(SPEC, now=1.0)
    store.trials.create(1, [(number, params or {"lr": 0.1})], now=2.0)
    return store.trials.page(1)[-1].id


def queue(store: Store, trial_id: int) -> None:
    trial = store.trials.get(trial_id)
    assert store.trials.move(trial_id, trial.state, trial.attempt, TrialState.QUEUED, sized=SIZED, now=3.0)


def begin(store: Store, trial_id: int, attempt: int = 1, *, now: float = 4.0) -> bool:
    return store.attempts.begin(
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
    assert store.reports.start(trial_id, 1, "token-1", now=5.0)
    return trial_id


def retry(store: Store, trial_id: int, attempt: int) -> None:
    """End attempt ``attempt - 1`` and run the next."""
    assert store.trials.move(trial_id, TrialState.RUNNING, attempt - 1, TrialState.QUEUED, now=6.0)
    assert store.attempts.move(trial_id, attempt - 1, [AttemptState.RUNNING], AttemptState.ENDED, now=7.0)
    assert begin(store, trial_id, attempt, now=8.0)
    assert store.reports.start(trial_id, attempt, f"token-{attempt}", now=9.0)


def metric(trial_id: int, seq: int, step: int, acc: float, attempt: int = 1) -> Metric:
    return Metric(trial_id, attempt, seq, step, {"acc": acc, "loss": 1.0}, 6.0)


def report(store: Store, *rows: Metric) -> bool:
    first = rows[0]
    return store.reports.add(
        Report(first.trial_id, first.attempt, f"token-{first.attempt}", metrics=rows, objectives=["acc"]),
        now=6.0,
    )


def contents(store: Store) -> list[object]:
    """Everything, to see that nothing has changed."""
    trials = [trial for study in store.studies.page() for trial in store.trials.page(study.id)]
    of_trials = [(store.attempts.of_trial(t.id), store.reports.metrics(t.id), store.reports.logs(t.id)) for t in trials]
    return [store.studies.page(), trials, of_trials, store.events.page(limit=10_000), store.cluster.recorded()]


def new_study(store: Store, num_trials: int) -> list[int]:
    """A study's queued trials."""
    study = store.studies.create({"name": "digits"}, now=0.0)
    store.trials.create(study.id, [(number, {}) for number in range(num_trials)], now=0.0)
    ids = [trial.id for trial in store.trials.page(study.id)]
    for trial_id in ids:
        assert store.trials.move(trial_id, TrialState.WAITING, 0, TrialState.QUEUED, sized=sized(), now=0.0)
    return ids


def hold(store: Store, trial_id: int, devices: str, began: float, ended: float | None = None, attempt: int = 1) -> None:
    """An attempt on the devices (one letter each) from ``began`` to ``ended``; an ended one queues the trial again."""
    assert store.attempts.begin(new_attempt(trial_id, attempt, devices=tuple(devices), predicted_bytes=100, now=began))
    if ended is not None:
        assert store.trials.move(trial_id, TrialState.RUNNING, attempt, TrialState.QUEUED, now=ended)
        assert store.attempts.move(trial_id, attempt, [AttemptState.STARTING], AttemptState.ENDED, now=ended)


def measured(store: Store, trial_id: int, peak: int) -> None:
    hold(store, trial_id, "a", 1.0)
    assert store.reports.add(Report(trial_id, 1, "t", measured_bytes=peak), now=2.0)


def new_family(store: Store, names: str) -> list[int]:
    """A study with a trial of each family, planned."""
    study = store.studies.create({"name": "digits"}, now=0.0)
    store.trials.create(study.id, [(number, {}) for number in range(len(names))], now=0.0)
    ids = [trial.id for trial in store.trials.page(study.id)]
    for trial_id, name in zip(ids, names, strict=True):
        assert store.trials.move(
            trial_id,
            TrialState.WAITING,
            0,
            TrialState.QUEUED,
            sized=sized(),
            changes=TrialChanges(family=name),
            now=0.0,
        )
    return ids
