"""Seconds of a step where AdaScale counts it as several, and which plans a trial may take: those whose batch may grow.

A plan with a larger batch is worth it only by the trial's own noise scale, which it measures while it trains. So every
trial begins with the batch of its candidate.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from estimators.model import Plan
from scamp_service.model import Attempt, Choice, Json, Trial
from workloads.batch import BatchRequest
from workloads.gain import gain_of_batch


def counts_as(trial: Trial, plan: Plan) -> float:
    """Steps of the study that an optimizer step under this plan counts as: 1, unless AdaScale is known to gain more."""
    return counted_by(trial.params, plan, trial.noise_scale)


def counted_by(params: Json, plan: Plan, noise_scale: float | None) -> float:
    """Steps of the study that an optimizer step of a candidate counts as, with a noise scale in samples.

    They are steps of the candidate's batch where it does not say for which one its learning rate is meant.
    """
    if noise_scale is None or not (request := BatchRequest.of(params)).scales:
        return 1.0
    return gain_of_batch(plan.batch, request.base or request.samples or plan.batch, noise_scale)


def counted_seconds(trial: Trial, choice: Choice) -> float | None:
    """Predicted seconds of one step of the study under this plan; None where they are not known."""
    return None if choice.step_seconds is None else choice.step_seconds / counts_as(trial, choice.plan)


def step_seconds(trial: Trial, attempt: Attempt) -> float | None:
    """Seconds of one step of the study, as measured or else as predicted; None if neither is known."""
    seconds = attempt.measured_step_seconds or attempt.choice.step_seconds
    return seconds and seconds / counts_as(trial, attempt.plan)


def worth_offering(trial: Trial, choices: Iterable[Choice]) -> tuple[Choice, ...]:
    """The choices with the best batch for each number of ranks, of each kind with fewer seconds than the one before.

    Until its noise scale is known, a trial keeps the batch that it was planned with.
    """
    offered = tuple(choices)
    if trial.plan is None or not BatchRequest.of(trial.params).changes:
        return offered
    if trial.noise_scale is None:
        return tuple(choice for choice in offered if choice.plan.batch == trial.plan.batch)
    best: dict[str, list[Choice]] = {choice.kind: [] for choice in offered}
    for choice in sorted(offered, key=lambda choice: (choice.plan.world_size, _order(trial, choice))):
        of_kind = best[choice.kind]
        if not of_kind or _order(trial, choice) < _order(trial, of_kind[-1]):
            of_kind.append(choice)
    return tuple(choice for of_kind in best.values() for choice in of_kind)


def _order(trial: Trial, choice: Choice) -> float:
    seconds = counted_seconds(trial, choice)
    return inf if seconds is None else seconds
