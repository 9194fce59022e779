"""Builds the order for the ranks of an attempt."""

from __future__ import annotations

from estimators.model import MIB
from scamp_service.control.decide.snapshot import Snapshot
from scamp_service.control.decide.study_rules import StudyRules
from scamp_service.control.executor import Order
from scamp_service.control.stopping.rule import next_pause
from scamp_service.model import Attempt, Trial
from workloads.training.checkpoints.name import CheckpointName


def order_for(s: Snapshot, trial: Trial, attempt: Attempt) -> Order:
    """The order for the ranks of ``attempt``, which train until the stopping rule pauses the trial.

    They resume from the trial's last committed checkpoint, or from the one that it copies. Without either they begin
    with weights of the trial's parent, if it has one.
    """
    study = s.studies[trial.study_id]
    resume = s.checkpoints.get(trial.id) or (trial.parent if trial.is_copy else None)
    return Order(
        trial_id=trial.id,
        attempt=attempt.attempt,
        token=attempt.token,
        study_id=study.id,
        candidate=study.candidate(trial),
        plan=attempt.plan,
        devices=attempt.devices,
        mib_per_rank=attempt.mib_per_rank,
        mibs=attempt.mibs,
        seed=study.seed + trial.number,
        steps=study.steps_of(trial),
        report_every=study.report_every,
        metrics=study.objectives.measured,
        objectives=study.objectives.names,
        resume=resume,
        until=next_pause(study.stopping, trial),
        keep=_needed_by_others(s, study, trial),
        donor=s.donors.get(trial.id) if resume is None else None,
        number=trial.number,
        in_epochs=study.budget.unit == "epoch",
        best_of=study.objectives.best_of,
        best=None if trial.value is None or trial.best_step is None else (trial.value, trial.best_step),
        guard=study.guard,
        pack=attempt.pack,
        shared_bytes=attempt.shared_mib * MIB,
    )


def _needed_by_others(s: Snapshot, study: StudyRules, trial: Trial) -> frozenset[CheckpointName]:
    """Checkpoints of ``trial`` with which other trials begin, or may begin while this attempt trains.

    A trial that is created meanwhile begins with the newest one that is recorded now, or with that of the best report.
    """
    needed: set[CheckpointName | None] = set()
    if study.search.inherits:
        needed = {other.parent for other in s.trials if other.parent_id == trial.id}
        needed.add(s.checkpoints.get(trial.id))
        needed.add(None if trial.best_step is None else CheckpointName(trial.id, trial.best_step))
    needed.add(CheckpointName(trial.id, trial.judged_step) if study.search.mutate else None)
    return frozenset(name for name in needed if name is not None)
