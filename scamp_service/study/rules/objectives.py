"""Rules for the objectives of a study, and for the options that suit one or several of them."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from scamp.shown import PREDICTED, first_names
from scamp_service.study.predicted import PredictedBounds
from scamp_service.study.rules.fields import Fields
from scamp_service.study.stopping import NeverOptions


def objective_complaints(study: Fields) -> Iterator[str]:
    """Objectives that contradict each other, and options that do not suit them."""
    every = study.every_objective
    if study.objectives and study.objective != every.leading:
        yield (
            f"objective is {study.objective.metric!r}, but the leading one of objectives is "
            f"{every.leading.metric!r}; give objective or objectives, not both"
        )
    if len(set(every.names)) < len(every.names):
        yield "objectives: each must have another metric"
    if len(every.items) > 1 and any(objective.at == "best" for objective in every.items):
        yield "at: best is for studies with one objective; with several, a trial counts by its last report"
    yield from _target_complaints(study)
    if every.are_predicted and not all(isinstance(rule, NeverOptions) for rule in study.stopping_rules):
        yield (
            "stopping: all objectives are predicted, so nothing that a trial reports decides; leave "
            "stopping out, or add a measured objective"
        )
    if every.are_predicted and study.search.one_shot is not None:
        yield "search.one_shot needs a measured objective, which it ranks candidates by"
    if every.has_several:
        yield from _several_complaints(study)
    for objective in every.items:
        if objective.metric.startswith(PREDICTED) and objective.predicted not in PredictedBounds.model_fields:
            close = get_close_matches(objective.predicted, list(PredictedBounds.model_fields), 1, 0.5)
            hint = f"; did you mean {PREDICTED}{close[0]}?" if close else ""
            bound_names = ", ".join(PredictedBounds.model_fields)
            yield f"objective {objective.metric!r}: nothing like that is predicted, only {bound_names}{hint}"


def _several_complaints(study: Fields) -> Iterator[str]:
    """Options that make no sense with several objectives."""
    sampler = study.search.sampler.name
    if not study.search.sampler.several_objectives:
        yield (
            f"search.sampler: {sampler} knows one objective, and this study has {len(study.objectives)}; take "
            "nsga2, nsga3, tpe, gp or another"
        )
    if study.search.one_shot is not None:
        yield (
            f"search.one_shot ranks candidates by one value, and this study has {len(study.objectives)} objectives; "
            "leave it out"
        )
    for rule in study.stopping_rules:
        if rule.one_objective:
            yield (
                f"stopping: {rule.rule} judges a trial by one value, and this study has {len(study.objectives)} "
                "objectives; take asha, hyperband, median, percentile or pbt, which compare trials by their rank"
            )
    if study.budget.terminator is not None:
        yield "budget.terminator bounds the regret of one objective, and this study has several; leave it out"
    if isinstance(study.budget.target, int | float):
        yield (
            "budget.target: give a value for each objective that matters, such as "
            f"{{{study.objectives[0].metric}: …, {study.objectives[1].metric}: …}}"
        )


def _target_complaints(study: Fields) -> Iterator[str]:
    names = study.every_objective.names
    for metric in study.targets:
        if metric not in names:
            yield f"budget.target: {metric} is not an objective of this study; they are {first_names(list(names))}"
