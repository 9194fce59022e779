"""Builds the order for the ranks of an attempt."""

from __future__ import annotations

from scamp_service.control.decide.snapshot import Snapshot
from scamp_service.control.executor import Order
from scamp_service.control.stopping.rule import next_pause
from scamp_service.model import Attempt, Trial
from workloads.training.checkpoints.name import CheckpointName


def order_for(s: Snapshot, trial: Trial, attempt: Attempt) -> Order:
    """The order for the ranks of ``attempt``. They resume from the trial's last committed checkpoint,
    or from the one that it copies, and train until the stopping rule pauses the trial."""
    study = s.studies[trial.study_id]
    return Order(
        trial_id=trial.id,
        attempt=attempt.attempt,
        token=attempt.token,
        study_id=study.id,
        candidate=study.candidate(trial),
        plan=attempt.plan,
        devices=attempt.devices,
        mib_per_rank=attempt.mib_per_rank,
        seed=study.seed + trial.number,
        steps=study.steps,
        report_every=study.report_every,
        metric=study.objective.metric,
        resume=s.checkpoints.get(trial.id) or trial.parent,
        until=next_pause(study.stopping, trial),
        keep=CheckpointName(trial.id, trial.judged_step) if study.mutate else None,
        number=trial.number,
        in_epochs=study.in_epochs,
    )
