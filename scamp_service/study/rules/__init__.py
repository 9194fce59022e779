"""The rules that the fields of a study must follow together, in the words in which a study is refused."""

from __future__ import annotations

from collections.abc import Iterator

from scamp.shown import first_names
from scamp_service.study.rules.candidates import (
    batch_complaints,
    constraint_complaints,
    given_start_complaints,
    option_complaints,
)
from scamp_service.study.rules.fields import Fields
from scamp_service.study.rules.objectives import objective_complaints
from scamp_service.study.rules.search import (
    grid_complaints,
    one_shot_complaints,
    repeat_complaints,
    stopping_complaints,
)
from scamp_service.study.spaces.constraints import ParameterConstraints
from scamp_service.study.spaces.slots import slots_of
from scamp_service.study.workload_names import is_file


def broken_rules(study: Fields) -> Iterator[str]:
    """Violated rules between fields; only the first is reported."""
    yield from objective_complaints(study)
    if not study.space:
        if not is_file(study.workload):
            yield ("space: the search space is empty; add at least one parameter with choice, or with low and high")
        return
    both = sorted(set(study.space) & set(study.fixed))
    if both:
        yield f"{first_names(both)}: in both space and fixed; keep one"
    try:
        slots, constraints = slots_of(study.space), ParameterConstraints(study.constraints)
    except ValueError as error:
        yield str(error)
        return
    sampler = study.search.sampler
    if sampler.exhaustive:
        yield from grid_complaints(sampler.name, slots)
        if any(slot.dimension.prior for slot in slots):
            yield f"{sampler.name} search tries every point, and has no use for a prior"
        if study.search.filter:
            yield f"{sampler.name} search tries every point, and has no use for a filter"
    if study.constraints and not sampler.constraints:
        yield f"{sampler.name} knows no constraints; grid does"
    yield from constraint_complaints(study, slots, constraints)
    for position, start in enumerate(study.start_with):
        yield from given_start_complaints(study, f"start_with[{position}]", start, slots, constraints)
    if study.budget.terminator is not None and study.search.one_shot is not None:
        yield "budget.terminator is for searches that train each candidate; leave it out, or search.one_shot"
    if study.budget.terminator is not None and all(slot.dimension.when for slot in slots):
        yield "budget.terminator needs a parameter that every candidate has, and all of these have conditions"
    if len(study.start_with) > study.budget.trials:
        yield f"start_with has {len(study.start_with)} candidates, but the budget allows {study.budget.trials} trials"
    yield from stopping_complaints(study)
    yield from repeat_complaints(study)
    yield from one_shot_complaints(study)
    yield from batch_complaints(study)
    yield from option_complaints(study)
