"""Samplers of Optuna, by the names and options that a study gives them.

Each proposal comes from a new sampler of Optuna with a seed of its own, as the state of a random generator would not
survive a crash: the one of trial n has the seed ``seed_of(search.seed, n)``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, nsgaii

from scamp_service.search.history import Active, Observation
from scamp_service.search.samplers.optuna_study import OptunaStudy, in_order, optuna_is_silent
from scamp_service.search.samplers.replayed_study import ReplayedStudy
from scamp_service.search.samplers.sampler import seed_of
from scamp_service.search.space import Space
from scamp_service.study.budget import MAX_TRIALS
from scamp_service.study.objectives import Objectives
from scamp_service.study.sampler_options import (
    BruteForceOptions,
    CmaEsOptions,
    GpOptions,
    Nsga2Options,
    Nsga3Options,
    QmcOptions,
    TpeOptions,
)
from scamp_service.study.spaces.points import Points
from scamp_service.study.spaces.slots import slots_of
from scamp_service.study.spec import StudySpec
from scamp_service.study.values import Params

BLOCK = 1024
"""Points of a Sobol sequence that fill the space evenly by themselves: a power of two."""
NUM_BLOCKS = 32


class _FromHistory:
    """A sampler that keeps no notes: it depends on the trials that it is shown."""

    reads_history: ClassVar = True
    needs_own_process: ClassVar[bool] = False
    shows_most: ClassVar[int | None] = None

    def __init__(self, spec: StudySpec) -> None:
        self._seed, self._space, self._options = spec.search.seed, Space(spec.space), spec.search.sampler
        self._study = OptunaStudy(self._space, spec.every_objective)

    def suggest(
        self, number: int, completed: Sequence[Observation], active: Sequence[Active], attempt: int = 0
    ) -> Params | None:
        """The searched parameters of trial ``number``."""
        with optuna_is_silent():
            sampler = self._sampler_of(seed_of(self._seed, number, attempt))
        return self._study.ask(sampler, number, completed, active)

    def _sampler_of(self, seed: int) -> BaseSampler:
        raise NotImplementedError


class _WithNotes:
    """A sampler that keeps notes about trials, which are made again from the history."""

    ranks_infeasible: ClassVar = False
    reads_history: ClassVar = True
    needs_own_process: ClassVar[bool] = False
    shows_most: ClassVar[int | None] = None

    def __init__(self, spec: StudySpec) -> None:
        self._seed, self._options = spec.search.seed, spec.search.sampler
        self._study = ReplayedStudy(
            Space(spec.space), spec.every_objective, self._of, ranks_infeasible=self.ranks_infeasible
        )

    def suggest(
        self, number: int, completed: Sequence[Observation], active: Sequence[Active], attempt: int = 0
    ) -> Params | None:
        """The searched parameters of trial ``number``."""
        return self._study.ask(number, completed, active, attempt)

    def _of(self, number: int, attempt: int) -> BaseSampler:
        return self._sampler_of(seed_of(self._seed, number, attempt))

    def _sampler_of(self, seed: int) -> BaseSampler:
        raise NotImplementedError


class Tpe(_FromHistory):
    """TPE that stays away from active trials, and starts with random ones.

    It models parameters together, and where some of them exist only sometimes, those together that exist together.
    """

    def _sampler_of(self, seed: int) -> BaseSampler:
        options = self._options
        assert isinstance(options, TpeOptions)
        group = options.group
        if group is None:
            group = self._space.is_conditional and options.multivariate is not False
        return optuna.samplers.TPESampler(
            seed=seed,
            n_startup_trials=options.n_startup_trials,
            n_ei_candidates=options.n_ei_candidates,
            multivariate=options.multivariate,
            group=group,
            constant_liar=options.constant_liar,
        )


class Gp(_FromHistory):
    """A Gaussian process, whose time grows with the cube of the trials that it is shown.

    Optuna's models only trials that have completed. Where most are stopped early it would long remain random, so those
    count with the value that they had.
    """

    needs_own_process: ClassVar[bool] = True  # it imports torch
    shows_most: ClassVar[int | None] = 200

    def __init__(self, spec: StudySpec) -> None:
        super().__init__(spec)
        self._objectives = spec.every_objective

    def suggest(
        self, number: int, completed: Sequence[Observation], active: Sequence[Active], attempt: int = 0
    ) -> Params | None:
        """The searched parameters of trial ``number``."""
        return super().suggest(number, as_completed(completed, self._objectives), active, attempt)

    def _sampler_of(self, seed: int) -> BaseSampler:
        options = self._options
        assert isinstance(options, GpOptions)
        return optuna.samplers.GPSampler(
            seed=seed,
            n_startup_trials=options.n_startup_trials,
            deterministic_objective=options.deterministic_objective,
        )


def as_completed(trials: Sequence[Observation], objectives: Objectives) -> list[Observation]:
    """The trials, those of one objective that were stopped early as if they had completed with the value that they had.

    None of these is better than all that completed: the best value is one that a whole training has reached.
    """
    if objectives.has_several:
        return list(trials)
    finished = [trial.values for trial in trials if trial.values is not None and trial.pruned_at is None]
    best = min(finished, key=objectives.keys, default=None)

    def judged(trial: Observation) -> Observation:
        if trial.values is None or trial.pruned_at is None:
            return trial
        values = trial.values if best is None else max(trial.values, best, key=objectives.keys)
        return replace(trial, values=values, pruned_at=None)

    return [judged(trial) for trial in trials]


class Qmc:
    """A low-discrepancy sequence; the first candidate is random. Proposals depend on the number alone.

    A study with earlier trials begins further on in the sequence, as its first points are often theirs.
    """

    reads_history: ClassVar = False
    needs_own_process: ClassVar[bool] = False
    shows_most: ClassVar[int | None] = None

    def __init__(self, spec: StudySpec) -> None:
        self._seed, self._options, self._space = spec.search.seed, spec.search.sampler, Space(spec.space)
        self._study = OptunaStudy(self._space, spec.every_objective)

    def suggest(
        self, number: int, completed: Sequence[Observation], active: Sequence[Active], attempt: int = 0
    ) -> Params | None:
        """The searched parameters of trial ``number``."""
        assert isinstance(self._options, QmcOptions)
        with optuna_is_silent():
            skipped = BLOCK * (1 + self._seed % NUM_BLOCKS) if completed else 0
            sampler = _QmcPoint(
                number - 1 + skipped + attempt * MAX_TRIALS,
                self._space.distributions,
                seed_of(self._seed, number, attempt),
                self._seed,
                self._options,
            )
        return self._study.ask(sampler, number)


class _QmcPoint(optuna.samplers.QMCSampler):
    """One point of the sequence. Optuna's own sampler counts its points in the storage."""

    def __init__(
        self, index: int, space: dict[str, BaseDistribution], random_seed: int, seed: int, options: QmcOptions
    ) -> None:
        super().__init__(
            qmc_type=options.qmc_type,
            scramble=options.scramble,
            seed=seed,
            independent_sampler=optuna.samplers.RandomSampler(seed=random_seed),
            warn_independent_sampling=False,
        )
        self._index, self._whole_space = index, space

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, BaseDistribution]:
        """Every parameter, from the second trial on."""
        return self._whole_space if self._index >= 0 else {}

    def _find_sample_id(self, study: Any, search_space: Any) -> int:
        return self._index


class CmaEs(_WithNotes):
    """CMA-ES over the ranges; choices are random."""

    def _sampler_of(self, seed: int) -> BaseSampler:
        options = self._options
        assert isinstance(options, CmaEsOptions)
        return optuna.samplers.CmaEsSampler(
            seed=seed,
            n_startup_trials=options.n_startup_trials,
            popsize=options.popsize,
            use_separable_cma=options.use_separable_cma,
            lr_adapt=options.lr_adapt,
            consider_pruned_trials=options.consider_pruned_trials,
            warn_independent_sampling=False,
        )


_CROSSOVERS: Mapping[str, Callable[[], nsgaii.BaseCrossover]] = {
    "uniform": nsgaii.UniformCrossover,
    "blxalpha": nsgaii.BLXAlphaCrossover,
    "sbx": nsgaii.SBXCrossover,
    "spx": nsgaii.SPXCrossover,
    "undx": nsgaii.UNDXCrossover,
    "vsbx": nsgaii.VSBXCrossover,
}


class Nsga2(_WithNotes):
    """The genetic algorithm NSGA-II."""

    ranks_infeasible: ClassVar = True

    def _sampler_of(self, seed: int) -> BaseSampler:
        options = self._options
        assert isinstance(options, Nsga2Options)
        return optuna.samplers.NSGAIISampler(seed=seed, **_genetic(options))


class Nsga3(_WithNotes):
    """The genetic algorithm NSGA-III."""

    ranks_infeasible: ClassVar = True

    def _sampler_of(self, seed: int) -> BaseSampler:
        options = self._options
        assert isinstance(options, Nsga3Options)
        return optuna.samplers.NSGAIIISampler(
            seed=seed, dividing_parameter=options.dividing_parameter, **_genetic(options)
        )


def _genetic(options: Nsga2Options | Nsga3Options) -> dict[str, Any]:
    is_uniform = options.crossover == "uniform"
    return {
        "population_size": options.population_size,
        "crossover": None if is_uniform else _CROSSOVERS[options.crossover](),
        "crossover_prob": options.crossover_prob,
        "mutation_prob": options.mutation_prob,
        "swapping_prob": options.swapping_prob,
    }


class BruteForce(_FromHistory):
    """Every point once. It ends when all have been tried, those that still run included."""

    shows_most: ClassVar[int | None] = MAX_TRIALS

    def __init__(self, spec: StudySpec) -> None:
        super().__init__(spec)
        self._num_points = Points(slots_of(spec.space)).count

    def suggest(
        self, number: int, completed: Sequence[Observation], active: Sequence[Active], attempt: int = 0
    ) -> Params | None:
        """The searched parameters of trial ``number``; None when every point has been tried."""
        tried = {self._space.number_of(trial.params) for trial in in_order(completed, active)} - {None}
        return super().suggest(number, completed, active, attempt) if len(tried) < self._num_points else None

    def _sampler_of(self, seed: int) -> BaseSampler:
        assert isinstance(self._options, BruteForceOptions)
        return optuna.samplers.BruteForceSampler(seed=seed, avoid_premature_stop=self._options.avoid_premature_stop)
