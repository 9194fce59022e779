"""Ends the live trials of a study that ends before they do."""

from __future__ import annotations

from scamp_service.control.decide.effects import MoveTrial
from scamp_service.control.decide.study_rules import StudyRules
from scamp_service.lifecycle import TrialState
from scamp_service.model import Trial


def ended_with(study: StudyRules, trial: Trial) -> MoveTrial:
    """End a trial of a study that is no longer running.

    Where a limit of the budget has ended the study, a trial that has trained counts with its newest value, whether it
    runs or is to run again, and one that is paused counts as stopped early. All others are cancelled.
    """
    progress, budget = study.progress, study.budget
    why = progress.reason or "the study was stopped"
    if progress.is_ending_at_its_limit and trial.step and study.objectives.values_of(trial) is not None:
        reason = f"ended after {budget.unit} {trial.step} of {budget.length}: {why}"
        to = TrialState.PRUNED if trial.state is TrialState.PAUSED else TrialState.COMPLETED
        return MoveTrial(trial, to, reason)
    return MoveTrial(trial, TrialState.CANCELLED, why)
