"""Compares samplers on tables of trained networks: ScaMP's with random search and with Optuna's own, at equal trials.

Each data set counts alike: scores are divided by the mean score of random search there. Searches run in as many
processes as there are CPUs.
"""

from __future__ import annotations

import itertools
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean, stdev
from typing import Any

import numpy as np
import optuna
from optuna.samplers import BaseSampler

from scamp_service.lifecycle import Origin, TrialState
from scamp_service.search.space import Space
from scamp_service.study.parse import parse_study
from scamp_service.study.spec import StudySpec
from scamp_service.study.values import Params

FIRST_SEED = 100
"""Seeds below it were looked at while this was written, and the defaults of samplers were chosen on them."""
RESAMPLES = 2000
_S = optuna.samplers
OPTUNA: Mapping[str, Callable[[int], BaseSampler]] = {
    "random": lambda seed: _S.RandomSampler(seed=seed),
    "tpe": lambda seed: _S.TPESampler(seed=seed),
    "nsga2": lambda seed: _S.NSGAIISampler(seed=seed),
    "cmaes": lambda seed: _S.CmaEsSampler(seed=seed, warn_independent_sampling=False),
    "gp": lambda seed: _S.GPSampler(seed=seed),
}
"""Optuna's own samplers with their defaults."""
Scores = Mapping[str, Sequence[float]]
"""Data set → score of each seed."""
Run = Callable[[str, str, int, int], float]
"""The score of one search: data set, sampler, seed, number of trials. Other processes import it."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial that has ended, as a search reads it."""

    number: int
    params: Mapping[str, Any]
    value: float | None = None
    state: TrialState = TrialState.COMPLETED
    values: Sequence[float | None] | None = None
    quantities: Mapping[str, float | None] = field(default_factory=dict)
    step: int = 1
    origin: Origin = Origin.SEARCH


def spec_of(
    space: Mapping[str, Any],
    objectives: Sequence[Mapping[str, str]],
    sampler: str,
    seed: int,
    num_trials: int,
    **more: Any,
) -> StudySpec:
    """A study over a table."""
    head = {"name": "table", "workload": "table.py:Table", "objectives": objectives, "space": space}
    search = {"sampler": sampler, "seed": seed}
    return parse_study({**head, "search": search, "budget": {"trials": num_trials}, **more})


def asked_params(space: Space, trial: optuna.Trial) -> Params:
    """The parameters that Optuna's sampler has chosen for a trial."""
    return space.sampled(lambda name, _: trial.params[name])


def compared(
    title: str,
    keys: tuple[str, str],
    datasets: Sequence[str],
    samplers: Mapping[str, int],
    num_trials: int,
    ours: Run,
    theirs: Run,
) -> Mapping[str, Any]:
    """Ratio of each sampler's mean score to random search's and to that of Optuna's own, with its spread.

    ``keys`` name the two in the result. ``samplers`` has the number of seeds of each.
    """
    with ProcessPoolExecutor(os.cpu_count(), initializer=_quiet) as pool:
        searched = partial(_scores, pool, datasets, num_trials)
        return _compared(title, keys, samplers, searched, ours, theirs)


def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")


def _scores(pool: Executor, datasets: Sequence[str], num_trials: int, run: Run, sampler: str, num_seeds: int) -> Scores:
    seeds = range(FIRST_SEED, FIRST_SEED + num_seeds)
    names, drawn = zip(*itertools.product(datasets, seeds), strict=True)
    every = list(pool.map(run, names, itertools.repeat(sampler), drawn, itertools.repeat(num_trials)))
    return {name: every[index * num_seeds :][:num_seeds] for index, name in enumerate(datasets)}


def _compared(
    title: str,
    keys: tuple[str, str],
    samplers: Mapping[str, int],
    searched: Callable[[Run, str, int], Scores],
    ours: Run,
    theirs: Run,
) -> Mapping[str, Any]:
    random = searched(ours, "random", max(samplers.values()))
    print(f"\n{title:52}{'ScaMP':>22}{'Optuna':>22}{'seeds':>7}")
    by_key: dict[str, dict[str, tuple[float | None, ...]]] = {key: {} for key in keys}
    for name, num_seeds in samplers.items():
        mine = searched(ours, name, num_seeds)
        optuna_values = searched(theirs, name, num_seeds) if name in OPTUNA else None
        by_key[keys[0]][name] = _ratio(mine, random, random)
        if optuna_values:
            by_key[keys[1]][name] = _ratio(mine, optuna_values, random)
        optuna_share = _share(optuna_values, random) if optuna_values else ""
        print(f"{name:52}{_share(mine, random):>22}{optuna_share:>22}{num_seeds:>7}", flush=True)
    print(f"mean ± standard deviation over seeds; {len(random)} data sets")
    return {
        **{key: {name: ratio[0] for name, ratio in ratios.items()} for key, ratios in by_key.items()},
        **{f"{key}_spread": {name: ratio[1:] for name, ratio in ratios.items()} for key, ratios in by_key.items()},
        f"{keys[0].split('_')[0]}_seeds": dict(samplers),
    }


def _normalised(scores: Scores, random: Scores) -> np.ndarray[Any, Any]:
    """Score of each seed, the mean over data sets, each divided by random's mean there."""
    return np.mean([np.array(scores[name]) / fmean(random[name]) for name in random], axis=0)


def _share(scores: Scores, random: Scores) -> str:
    values = list(_normalised(scores, random))
    return f"{fmean(values):.3f} ± {stdev(values):.3f}"


def _ratio(mine: Scores, other: Scores, random: Scores) -> tuple[float | None, ...]:
    """Ratio of the mean scores, and its 95 % interval by resampling the seeds of both; None for an infinite one."""
    my_values, other_values = _normalised(mine, random), _normalised(other, random)
    source = np.random.default_rng(0)
    drawn = sorted(_over(_mean(my_values, source), _mean(other_values, source)) for _ in range(RESAMPLES))
    low, high = drawn[round(0.025 * RESAMPLES)], drawn[round(0.975 * RESAMPLES) - 1]
    ratios = _over(float(my_values.mean()), float(other_values.mean())), low, high
    return tuple(round(ratio, 3) if math.isfinite(ratio) else None for ratio in ratios)


def _over(ratio: float, other: float) -> float:
    """The ratio of two scores; regrets may be 0 on both sides."""
    if ratio == other:
        return 1.0
    return ratio / other if other else math.inf


def _mean(values: np.ndarray[Any, Any], source: np.random.Generator) -> float:
    return float(source.choice(values, len(values)).mean())
