"""Devices that the trials of a snapshot want."""

from __future__ import annotations

from estimators.model import Plan
from scamp_service.control.decide.autoscale import num_devices_wanted
from scamp_service.control.decide.snapshot import Snapshot
from scamp_service.lifecycle import TrialState
from scamp_service.model import Attempt, Trial
from tests import values
from tests.scamp_service.control.decide import snapshots


def snapshot(trials: list[Trial], attempts: list[Attempt]) -> Snapshot:
    return Snapshot(
        now=1.0, studies={1: snapshots.study()}, trials=trials, attempts=attempts, gangs={}, cluster=snapshots.CLUSTER
    )


def test_running_gangs_queued_plans_and_trials_without_a_plan_count() -> None:
    running = values.attempt(trial_id=1, plan=Plan(4, dp_shard=2), devices=("n/0", "n/1"))
    trials = [
        values.trial(id=1),
        values.trial(id=2, state=TrialState.QUEUED, attempt=0, plan=Plan(2, dp_shard=4)),
        values.trial(id=3, state=TrialState.WAITING, attempt=0, plan=None),
    ]
    assert num_devices_wanted(snapshot(trials, [running]), 16) == 7
    assert num_devices_wanted(snapshot(trials, [running]), 4) == 3, "a gang of four is too large for the limit"
    assert num_devices_wanted(snapshot([], []), 16) == 0
