"""Batches that grow: which plans a trial may take, and how long their steps take as the study counts them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from estimators.model import Plan
from placement.packing.elastic import elastic
from scamp_service.control.decide.effects import Begin, MoveAttempt, MoveTrial
from scamp_service.control.decide.rules.growth import counted_seconds, counts_as, worth_offering
from scamp_service.control.stopping.several import NO_RULES
from scamp_service.lifecycle import AttemptState, TrialState
from scamp_service.model import Choice, Trial
from tests import values
from tests.scamp_service.control.decide import snapshots
from tests.values import attempt, changed, sized
from workloads.training.checkpoints.name import CheckpointName

PARAMS = {"scale_lr": "adascale", "base_batch": 8, "batch": 8, "largest_batch": 32}


def choice(plan: Plan, seconds: float) -> Choice:
    return Choice(plan, sized(plan).prediction, seconds)


OWN = choice(Plan(8), 1.0)
SAME = choice(Plan(4, dp_shard=2), 0.9)
DOUBLE, QUADRUPLE = choice(Plan(8, dp_shard=2), 1.1), choice(Plan(8, dp_shard=4), 1.2)


def trial(noise_scale: float | None, **changes: Any) -> Trial:
    row = values.trial(**{"params": PARAMS, "step": 100, "noise_scale": noise_scale, **changes})
    assert row.sized is not None
    sized_trial = changed(row.sized, step_seconds=1.0, choices=(OWN, SAME, DOUBLE, QUADRUPLE))
    return replace(row, sized=sized_trial)


@pytest.mark.parametrize(
    ("noise_scale", "offered"),
    [
        (None, (OWN, SAME)),
        (0.0, (OWN, SAME)),
        (1e9, (OWN, DOUBLE, QUADRUPLE)),
        (2.0, (OWN, SAME)),
    ],
)
def test_the_best_batch_for_each_number_of_ranks_is_offered_once_the_noise_is_known(
    noise_scale: float | None, offered: tuple[Choice, ...]
) -> None:
    noisy = trial(noise_scale)
    assert noisy.sized is not None
    assert worth_offering(noisy, noisy.sized.choices) == offered


@pytest.mark.parametrize(("noise_scale", "batch"), [(None, 8), (0.0, 4), (1e9, 8)])
def test_a_smaller_batch_is_offered_where_the_noise_is_small(noise_scale: float | None, batch: int) -> None:
    noisy = trial(noise_scale, params={**PARAMS, "base_batch": 4, "smallest_batch": 4})
    (offered,) = worth_offering(noisy, (choice(Plan(4), 0.6), OWN))
    assert offered.plan.batch == batch


def test_steps_count_as_those_of_the_base_batch() -> None:
    noisy = trial(1e9)
    assert counts_as(noisy, QUADRUPLE.plan) == pytest.approx(4)
    assert counted_seconds(noisy, QUADRUPLE) == pytest.approx(0.3)
    assert counts_as(trial(None), QUADRUPLE.plan) == 1.0
    assert counts_as(trial(1e9, params={**PARAMS, "scale_lr": "none"}), QUADRUPLE.plan) == 1.0


def study(**changes: Any) -> Any:
    return snapshots.study(**{"trials": 1, "num_trials": 1, "steps": 1000, "stopping": NO_RULES, **changes})


def test_a_running_trial_continues_on_idle_devices_with_a_larger_batch() -> None:
    running = attempt(step_seconds=1.0, measured_step_seconds=2.0)
    state = {
        "studies": {1: study()},
        "gangs": {running.key: snapshots.ALIVE},
        "checkpoints": {1: CheckpointName(1, 100)},
    }
    assert not snapshots.effects_of(trials=[trial(None)], attempts=[running], **state), "it is hardly faster on two"
    move, stop = snapshots.effects_of(trials=[trial(1e9)], attempts=[running], **state)
    assert isinstance(move, MoveTrial)
    assert move.sized is not None
    assert move.sized.plan == QUADRUPLE.plan
    assert isinstance(stop, MoveAttempt) and stop.to is AttemptState.WITHDRAWN
    assert "on 4 devices instead of 1 with a batch of 32 instead of 8 samples it ends" in stop.detail


def test_a_queued_trial_starts_with_the_batch_that_trains_fastest_on_its_devices() -> None:
    queued = trial(1e9, state=TrialState.QUEUED)
    (begin,) = snapshots.effects_of(trials=[queued], studies={1: study()}, policy=elastic)
    assert isinstance(begin, Begin) and begin.order.plan == QUADRUPLE.plan
    (begin,) = snapshots.effects_of(trials=[replace(queued, noise_scale=None)], studies={1: study()}, policy=elastic)
    assert isinstance(begin, Begin) and begin.order.plan == SAME.plan
