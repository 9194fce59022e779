"""Devices that the trials of a snapshot want."""

from __future__ import annotations

from dataclasses import replace

from estimators.model import Plan
from scamp_service.control.decide import decide, effects
from scamp_service.control.decide.autoscale import num_devices_wanted
from scamp_service.control.decide.snapshot import Packing, Snapshot
from scamp_service.control.executor import Unsized
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


def test_a_plan_for_devices_to_come_waits_for_them_and_says_so_while_others_start() -> None:
    wide = values.trial(id=2, state=TrialState.QUEUED, attempt=0, plan=Plan(1, 8, dp_shard=8))
    narrow = values.trial(id=3, number=1, state=TrialState.QUEUED, attempt=0)
    waits = replace(snapshot([wide, narrow], []), packing=Packing(autoscale_devices=8))
    move, begin = (effect for effect in decide(waits) if isinstance(effect, effects.MoveTrial | effects.Begin))
    assert isinstance(move, effects.MoveTrial) and (move.trial.id, move.to) == (2, TrialState.QUEUED)
    assert move.reason == (
        "its plan needs 8 × 24 MiB, and the cluster now has 4 such devices; "
        "Ray's autoscaler is asked for more, up to 8 devices in all"
    )
    assert isinstance(begin, effects.Begin) and begin.attempt.trial_id == 3
    assert num_devices_wanted(waits, 8) == 8
    (again,) = (
        effect
        for effect in decide(replace(waits, packing=Packing(autoscale_devices=7)))
        if isinstance(effect, effects.MoveTrial)
    )
    assert again.to is TrialState.WAITING, "so many devices are never there"


def test_a_candidate_that_would_not_fit_with_all_devices_to_come_either_says_so() -> None:
    waiting = values.trial(state=TrialState.WAITING, attempt=0, plan=None)
    refused = Unsized("needs 120 MiB, devices offer 96", infeasible=True, offer=(("virtual", 96, 8),))
    waiting_snapshot = replace(snapshot([waiting], []), sized={1: refused}, packing=Packing(autoscale_devices=8))
    assert snapshots.only_move(decide(waiting_snapshot)).reason == (
        "needs 120 MiB, devices offer 96; nor would it fit if there were the 8 devices of SCAMP_AUTOSCALE_DEVICES"
    )
