"""Searches with several objectives on a public table of trained graph networks, NAS-Bench-Graph, at equal trials.

The objectives are validation accuracy, latency and parameters. The table is in the wheel of ``nas-bench-graph``. A
front is judged by its hypervolume: the share of the box between the table's worst and best values that it dominates,
where latency and parameters are on a logarithmic scale. Each data set counts alike: hypervolumes are divided by the
mean one of random search there.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from statistics import fmean, stdev
from typing import Any

import numpy as np
import optuna
from nas_bench_graph.architecture import Arch, gnn_list, link_list
from optuna._hypervolume import compute_hypervolume

from benchmarks.searching.tables import FIRST_SEED, OPTUNA, RESAMPLES
from scamp_service.lifecycle import Origin, TrialState
from scamp_service.search.proposals import Search
from scamp_service.search.space import Space
from scamp_service.study.parse import parse_study
from scamp_service.study.spec import StudySpec

DATASETS = ("arxiv", "citeseer", "cora", "pubmed")
"""The citation graphs of the table."""
OBJECTIVES = (("accuracy", "maximize"), ("latency", "minimize"), ("parameters", "minimize"))
SPACE = {"link": {"choice": link_list}} | {f"op{place}": {"choice": gnn_list} for place in range(4)}
SAMPLERS: Sequence[Any] = (
    "tpe",
    {"name": "nsga2", "population_size": 20},
    {"name": "evolution", "population_size": 20, "sample_size": 5},
)
Values = tuple[float, ...]


class _Numbers(pickle.Unpickler):
    """Reads numbers and nothing else: a pickle may hold code."""

    def find_class(self, module: str, name: str) -> Any:
        """NumPy's scalars alone."""
        if (module, name) == ("numpy.core.multiarray", "scalar"):
            return np._core.multiarray.scalar  # type: ignore[attr-defined]
        if (module, name) == ("numpy", "dtype"):
            return np.dtype
        raise pickle.UnpicklingError(f"{module}.{name} is no number")


@dataclass(frozen=True)
class Graphs:
    """The networks of one data set."""

    dataset: str

    @cached_property
    def _rows(self) -> Mapping[int, Mapping[str, float]]:
        with (files("nas_bench_graph") / "light" / f"{self.dataset}.bench").open("rb") as stream:
            rows: Mapping[int, Mapping[str, float]] = _Numbers(stream).load()
        return rows

    @cached_property
    def _ends(self) -> tuple[Values, Values]:
        every = np.array([self._losses(row) for row in self._rows.values()])
        return tuple(every.min(axis=0)), tuple(every.max(axis=0))

    def values(self, params: Mapping[str, Any]) -> Values | None:
        """Accuracy, latency in seconds, and millions of parameters; None for a network without any layer."""
        arch = Arch(list(params["link"]), [params[f"op{place}"] for place in range(4)])
        row = self._rows.get(arch.valid_hash())
        return None if row is None else (float(row["valid_perf"]), float(row["latency"]), float(row["para"]))

    def hypervolume(self, found: Sequence[Values]) -> float:
        """Share of the box between the worst and the best values that these dominate."""
        low, high = self._ends
        losses = [(-accuracy, np.log(latency), np.log(para)) for accuracy, latency, para in found]
        scaled = (np.array(losses) - low) / (np.array(high) - low)
        return float(compute_hypervolume(scaled, np.ones(3)))

    @staticmethod
    def _losses(row: Mapping[str, float]) -> Values:
        return -float(row["valid_perf"]), float(np.log(row["latency"])), float(np.log(row["para"]))

    def spec(self, sampler: Any, seed: int) -> StudySpec:
        """A study of these networks."""
        objectives = [{"metric": metric, "direction": direction} for metric, direction in OBJECTIVES]
        return parse_study(
            {
                "name": "graphs",
                "workload": "graphs.py:Graphs",
                "objectives": objectives,
                "space": SPACE,
                "search": {"sampler": sampler, "seed": seed},
            }
        )


@dataclass(frozen=True, slots=True)
class _Trial:
    number: int
    params: Mapping[str, Any]
    values: Values | None
    state: TrialState = TrialState.COMPLETED
    step: int = 1
    origin: Origin = Origin.SEARCH
    quantities: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def value(self) -> float | None:
        """The leading objective."""
        return None if self.values is None else self.values[0]


def ours(graphs: Graphs, sampler: Any, seed: int, num_trials: int) -> float:
    """Hypervolume that ScaMP's sampler finds, one trial after another."""
    search, found, ended = Search(graphs.spec(sampler, seed)), list[Values](), list[_Trial]()
    for number in range(num_trials):
        (params,) = search.propose(ended, number, 1)
        values = graphs.values(params)
        found += [values] if values is not None else []
        ended = [_Trial(number, params, values, TrialState.COMPLETED if values else TrialState.INFEASIBLE)]
    return graphs.hypervolume(found)


def theirs(graphs: Graphs, sampler: Any, seed: int, num_trials: int) -> float:
    """Hypervolume that Optuna's own sampler finds."""
    space, found = Space(graphs.spec("random", 0).space), list[Values]()
    name, options = (sampler, {}) if isinstance(sampler, str) else (sampler["name"], {**sampler})
    options.pop("name", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = optuna.samplers.NSGAIISampler(seed=seed, **options) if name == "nsga2" else OPTUNA[name](seed)
        study = optuna.create_study(directions=[direction for _, direction in OBJECTIVES], sampler=made)
        for _ in range(num_trials):
            trial = study.ask(dict(space.distributions))
            values = graphs.values(space.sampled(lambda name, _, trial=trial: trial.params[name]))
            if values is None:
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            else:
                study.tell(trial, values)
                found.append(values)
    return graphs.hypervolume(found)


Found = Mapping[str, Sequence[float]]
"""Data set → hypervolume of each seed."""


def nasgraph(num_seeds: int, num_trials: int = 100, samplers: Sequence[Any] = SAMPLERS) -> Mapping[str, Any]:
    """Hypervolumes on NAS-Bench-Graph, against random search and Optuna's own samplers."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    tables, seeds = [Graphs(name) for name in DATASETS], range(FIRST_SEED, FIRST_SEED + num_seeds)

    def searched(run: Callable[[Graphs, Any, int, int], float], sampler: Any) -> Found:
        return {one.dataset: [run(one, sampler, seed, num_trials) for seed in seeds] for one in tables}

    random = searched(ours, "random")
    print(f"\n{f'NAS-Bench-Graph, {num_trials} trials, hypervolume over random':52}{'ScaMP':>22}{'Optuna':>22}")
    vs_random, vs_optuna = {}, {}
    for sampler in samplers:
        name = sampler if isinstance(sampler, str) else sampler["name"]
        mine = searched(ours, sampler)
        own = searched(theirs, sampler) if name in OPTUNA else None
        vs_random[name] = _ratio(mine, random, random)
        print(f"{name:52}{_share(mine, random):>22}{_share(own, random) if own else '':>22}")
        if own:
            vs_optuna[name] = _ratio(mine, own, random)
    print(f"mean ± standard deviation over {num_seeds} seeds; {len(tables)} data sets")
    found = {"nasgraph_hypervolume_vs_random": vs_random, "nasgraph_hypervolume_vs_optuna": vs_optuna}
    return {
        **{key: {name: ratio[0] for name, ratio in ratios.items()} for key, ratios in found.items()},
        **{f"{key}_spread": {name: ratio[1:] for name, ratio in ratios.items()} for key, ratios in found.items()},
        "nasgraph_seeds": num_seeds,
    }


def _normalised(found: Found, random: Found) -> np.ndarray[Any, Any]:
    """Hypervolume of each seed, the mean over data sets, each divided by random's mean there."""
    return np.mean([np.array(found[name]) / fmean(random[name]) for name in random], axis=0)


def _share(found: Found, random: Found) -> str:
    values = list(_normalised(found, random))
    return f"{fmean(values):.3f} ± {stdev(values):.3f}"


def _ratio(mine: Found, other: Found, random: Found) -> tuple[float, float, float]:
    """Ratio of the mean hypervolumes, and its 95 % interval by resampling the seeds of both."""
    one, two = _normalised(mine, random), _normalised(other, random)
    source = np.random.default_rng(0)
    drawn = [source.choice(one, len(one)).mean() / source.choice(two, len(two)).mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return round(float(one.mean() / two.mean()), 3), round(float(low), 3), round(float(high), 3)
