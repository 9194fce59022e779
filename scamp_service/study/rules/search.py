"""Rules for the sampler, the stopping rules and one-shot search: which of them suit each other and the space."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from scamp.shown import first_names
from scamp_service.study.budget import MAX_TRIALS
from scamp_service.study.one_shot import SUPERNET
from scamp_service.study.rules.fields import Fields
from scamp_service.study.sampler_options import EvolutionOptions
from scamp_service.study.spaces.points import Points
from scamp_service.study.spaces.slots import Slot
from scamp_service.study.spaces.space import Range
from scamp_service.study.stopping import NeverOptions


def stopping_complaints(study: Fields) -> Iterator[str]:
    """Stopping rules that do not suit the budget or each other."""
    rules = study.stopping_rules
    for rule in rules:
        yield from rule.complaints(study.space, study.budget.length, study.report_every, study.budget.unit)
    for name, count in Counter(rule.rule for rule in rules if rule.once_because).items():
        if count > 1:
            why = next(rule.once_because for rule in rules if rule.rule == name)
            yield f"stopping: {count} rules {name}; {why}, so keep one"


def repeat_complaints(study: Fields) -> Iterator[str]:
    """Options with which a candidate cannot be trained again with another seed."""
    if study.repeats == 1:
        return
    for rule in study.stopping_rules:
        if rule.changes_trainings:
            yield f"repeats: {rule.rule} {rule.changes_trainings}, so a repeat would be another training; leave out one"
    if study.search.inherits:
        yield "repeats: candidates begin with weights of others, so a repeat would be another training; leave out one"
    if study.every_objective.are_predicted:
        yield "repeats: all objectives are predicted, and the same for every seed; leave it out"


def one_shot_complaints(study: Fields) -> Iterator[str]:
    """Options that do not suit one-shot search, if the study asks for it."""
    one_shot, sampler = study.search.one_shot, study.search.sampler
    if one_shot is None:
        return
    if any(not isinstance(rule, NeverOptions) for rule in study.stopping_rules):
        yield "one_shot decides by itself who trains: set stopping to {rule: none}"
    if sampler.exhaustive:
        yield f"{sampler.name} search ends by itself; one_shot needs a sampler that does not, such as random"
    if isinstance(sampler, EvolutionOptions) and sampler.inherit:
        yield "candidates of one_shot inherit from the supernet: remove the option inherit of evolution"
    if study.every_objective.has_several or study.every_objective.are_predicted:
        yield "one_shot ranks candidates by one objective that evaluate returns"
    if study.objective.metric == "train_loss":
        yield "one_shot scores candidates without training, so train_loss cannot be the objective"
    if study.budget.target is not None:
        yield "budget.target cannot be used with one_shot, as the supernet might reach it"
    if SUPERNET in {*study.space, *study.fixed}:
        yield f"{SUPERNET}: one_shot sets this parameter itself; remove it from the study"
    if study.budget.trials < one_shot.num_trials:
        yield (
            f"budget.trials ({study.budget.trials}) must be at least {one_shot.num_trials}: the supernet, "
            f"{one_shot.candidates} candidates and the best {one_shot.best}, trained alone"
        )


def grid_complaints(sampler: str, slots: tuple[Slot, ...]) -> Iterator[str]:
    """Dimensions that a grid cannot list, or a grid of too many points."""
    open_ended = [slot.name for slot in slots if _is_continuous(slot)]
    if open_ended:
        yield f"{sampler} search needs choices or stepped ranges; continuous or log: {first_names(open_ended)}"
        return
    size = Points(slots, MAX_TRIALS).count
    if size > MAX_TRIALS:
        yield f"the grid has {size} points; at most {MAX_TRIALS} are allowed; take larger steps or fewer choices"


def _is_continuous(slot: Slot) -> bool:
    dimension = slot.dimension
    return isinstance(dimension, Range) and (dimension.log or dimension.num_values is None)
