"""Ends the live trials of a study that ends before they do."""

from __future__ import annotations

from scamp_service.control.decide.effects import MoveTrial
from scamp_service.control.decide.study_rules import StudyRules
from scamp_service.lifecycle import TrialState, WaitsFor
from scamp_service.model import Trial


def ended_with(study: StudyRules, trial: Trial) -> MoveTrial:
    """End a trial of a study that is no longer running.

    Where a limit of the budget has ended the study, a trial that has trained counts with its newest value, whether it
    runs or is to run again, and one that is paused counts as stopped early. One that waits for its repeats has been
    trained to its end. All others are cancelled.
    """
    progress, budget = study.progress, study.budget
    why = progress.reason or "the study was stopped"
    if trial.waits_for is WaitsFor.REPEATS:
        return MoveTrial(trial, TrialState.COMPLETED, f"{repeated(study, trial)}: {why}")
    if progress.is_ending_at_its_limit and trial.step and study.objectives.values_of(trial) is not None:
        reason = f"ended after {budget.unit} {trial.step} of {budget.length}: {why}"
        to = TrialState.PRUNED if trial.state is TrialState.PAUSED else TrialState.COMPLETED
        return MoveTrial(trial, to, reason)
    return MoveTrial(trial, TrialState.CANCELLED, why)


def repeated(study: StudyRules, trial: Trial) -> str:
    """Say of how many trainings the value of a trial is the mean."""
    count = max(1, len(trial.repeats))
    return f"mean of {count} training{'s' * (count > 1)}" + (f" of {study.repeats}" if count < study.repeats else "")
