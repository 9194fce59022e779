"""Trials of earlier studies as history of a new one. Which of them count depends on these trials alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scamp_service.search.history import History, Observation, Past
from scamp_service.search.samplers.sampler import seed_of
from scamp_service.search.space import Space
from scamp_service.study.spaces.slots import is_candidate, slots_of
from scamp_service.study.spec import StudySpec

MOST_OF_A_STUDY = 500
"""About this many trials of an earlier study are shown."""


@dataclass(frozen=True, slots=True)
class EarlierStudy:
    """An earlier study's trials, and the share of them that counts."""

    trials: Iterable[Past]
    weight: float = 1.0


def earlier_trials(spec: StudySpec, studies: Sequence[EarlierStudy]) -> list[Observation]:
    """The trials that fit the space of ``spec``, with negative numbers, so that they come before its own.

    Of about ``MOST_OF_A_STUDY`` trials of a study (the best ones, and others evenly) a share of ``weight`` is taken.
    """
    slots, earlier = slots_of(spec.space), list[Observation]()
    space = Space(spec.space)
    for study in studies:
        history, number = History(spec.every_objective), -1
        for past in study.trials:
            history.learn(past)
            number = max(number, past.number)
        shown = history.shown(number + 1, MOST_OF_A_STUDY).completed
        fit = [trial for trial in shown if is_candidate(slots, trial.params)]
        taken = [
            trial for index, trial in enumerate(fit) if int((index + 1) * study.weight) > int(index * study.weight)
        ]
        earlier += [replace(trial, params=_take_known(space, trial.params), excesses={}) for trial in taken]
    return [replace(trial, number=index - len(earlier)) for index, trial in enumerate(earlier)]


def with_own_seed(spec: StudySpec, earlier: Sequence[Observation]) -> StudySpec:
    """The study with another seed if it has earlier trials: they have often begun with the same seed, and random
    candidates would be the same once more."""
    if not earlier:
        return spec
    seed = seed_of(spec.search.seed, -len(earlier))
    return spec.model_copy(update={"search": spec.search.model_copy(update={"seed": seed})})


def _take_known(space: Space, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """The searched parameters of a trial, typed as the new study has them."""
    exact = space.exact(params)
    return space.nested(exact)


def to_json(trials: Sequence[Observation]) -> list[dict[str, Any]]:
    """JSON of these trials, for another process."""
    return [
        {"number": trial.number, "params": dict(trial.params), "values": trial.values, "pruned_at": trial.pruned_at}
        for trial in trials
    ]


def from_json(trials: Sequence[Mapping[str, Any]]) -> list[Observation]:
    """The trials that ``to_json`` has written."""
    return [Observation(**{**row, "values": row["values"] and tuple(row["values"])}) for row in trials]
