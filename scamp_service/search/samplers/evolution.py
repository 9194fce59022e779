"""Regularized evolution (Real et al. 2019, arXiv:1802.01548), asynchronous: architecture search by mutation and age."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from scamp_service.search.draws import draw_from
from scamp_service.search.history import Active, Observation
from scamp_service.search.moves import moved
from scamp_service.search.samplers.sampler import seed_of
from scamp_service.search.space import Space
from scamp_service.study.sampler_options import EvolutionOptions
from scamp_service.study.spaces.slots import Slot, existing_values
from scamp_service.study.spec import StudySpec
from scamp_service.study.values import Params

MOST_TRIES = 20
"""Mutations that are tried before one that has been proposed already is proposed again."""


class Evolution:
    """The first ``population_size`` candidates are random. Each later one mutates one parameter of the best of
    ``sample_size`` trials, drawn from the newest ``population_size`` that have ended."""

    reads_history: ClassVar = True
    needs_own_process: ClassVar[bool] = False
    shows_most: ClassVar[int | None] = None

    def __init__(self, spec: StudySpec) -> None:
        options = spec.search.sampler
        assert isinstance(options, EvolutionOptions)
        assert options.population_size is not None and options.sample_size is not None
        self._options, self._seed = options, spec.search.seed
        self._population_size, self._sample_size = options.population_size, options.sample_size
        self._space, self._objectives = Space(spec.space), spec.every_objective

    def suggest(
        self, number: int, completed: Sequence[Observation], active: Sequence[Active], attempt: int = 0
    ) -> Params | None:
        """The searched parameters of trial ``number``."""
        source = random.Random(seed_of(self._seed, number, attempt))
        population = completed[-self._population_size :]
        winner = self._winner(population, source)
        if winner is None:
            return self._space.sampled(lambda _, distribution: draw_from(distribution, source))
        parent = self._space.flat(winner.params)
        taken = [self._space.flat(params) for params in (*(t.params for t in population), *(t.params for t in active))]
        children = (self._child(parent, source) for _ in range(MOST_TRIES))
        child = next((child for child in children if child not in taken), None)
        return self._space.nested(child or self._child(parent, source))

    def parent(self, number: int, completed: Sequence[Observation], attempt: int = 0) -> int | None:
        """Number of the trial that the candidate is a change of, if the study lets it inherit weights."""
        if not self._options.inherit:
            return None
        source = random.Random(seed_of(self._seed, number, attempt))
        winner = self._winner(completed[-self._population_size :], source)
        is_own = winner is not None and winner.number >= 0  # not one of an earlier study
        return winner.number if winner is not None and is_own and winner.values is not None else None

    def _winner(self, population: Sequence[Observation], source: random.Random) -> Observation | None:
        """The best of a sample; None while the population is not complete."""
        if len(population) < self._population_size:
            return None
        contestants = source.sample(population, min(self._sample_size, len(population)))
        return self._best(contestants)

    def _child(self, parent: Mapping[str, Any], source: random.Random) -> Params:
        """Flat parameters with one of those of ``parent`` changed. What exists only with the change is random."""
        changed = source.choice([slot.name for slot in self._space.slots if slot.name in parent])

        def value_of(slot: Slot) -> Any:
            if slot.name not in parent:
                return self._space.drawn(slot.name, source)
            if slot.name != changed:
                return parent[slot.name]
            return moved(slot.dimension, parent[slot.name], source)

        return existing_values(self._space.slots, value_of)

    def _best(self, trials: Sequence[Observation]) -> Observation:
        """The best trial: those that were stopped early follow the others, the latest before, then the rest.

        With several objectives they are compared by non-domination rank (``Objectives.places``).
        """
        valued = [(trial.number, trial.values) for trial in trials if trial.values is not None]
        places = self._objectives.places([values for _, values in valued])
        place_of = {number: place for (number, _), place in zip(valued, places, strict=True)}

        def rank(trial: Observation) -> tuple[float, ...]:
            if trial.values is None:
                return (2.0, max(trial.excesses.values(), default=0.0))
            place = place_of[trial.number]
            return (0.0, place) if trial.pruned_at is None else (1.0, -trial.pruned_at, place)

        return min(trials, key=rank)
