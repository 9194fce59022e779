"""Searches with several objectives on a public table of trained graph networks, NAS-Bench-Graph, at equal trials.

The objectives are validation accuracy, latency and parameters. The table is in the wheel of ``nas-bench-graph``. A
front is judged by its hypervolume: the share of the box between the table's worst and best values that it dominates,
where latency and parameters are on a logarithmic scale. ScaMP's samplers and Optuna's own have their defaults.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Any

import numpy as np
import optuna
from nas_bench_graph.architecture import Arch, gnn_list, link_list
from optuna._hypervolume import compute_hypervolume

from benchmarks.searching.compared import OPTUNA, Trial, asked_params, compared, spec_of
from scamp_service.lifecycle import TrialState
from scamp_service.search.proposals import Search
from scamp_service.search.space import Space
from scamp_service.study.spec import StudySpec

DATASETS = ("arxiv", "citeseer", "cora", "pubmed")
"""The citation graphs of the table."""
OBJECTIVES = (("accuracy", "maximize"), ("latency", "minimize"), ("parameters", "minimize"))
SPACE = {"link": {"choice": link_list}} | {f"op{index}": {"choice": gnn_list} for index in range(4)}
Values = tuple[float, ...]


class _Numbers(pickle.Unpickler):
    """Reads numbers and nothing else: a pickle may hold code."""

    def find_class(self, module: str, name: str) -> Any:
        """NumPy's scalars alone."""
        if (module, name) == ("numpy.core.multiarray", "scalar"):
            return np._core.multiarray.scalar  # type: ignore[attr-defined]
        if (module, name) == ("numpy", "dtype"):
            return np.dtype
        raise pickle.UnpicklingError(f"{module}.{name} is not a number")


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
        arch = Arch(list(params["link"]), [params[f"op{index}"] for index in range(4)])
        row = self._rows.get(arch.valid_hash())
        return None if row is None else (float(row["valid_perf"]), float(row["latency"]), float(row["para"]))

    def hypervolume(self, points: Sequence[Values]) -> float:
        """Share of the box between the worst and the best values that these dominate."""
        low, high = self._ends
        losses = [(-accuracy, np.log(latency), np.log(para)) for accuracy, latency, para in points]
        scaled = (np.array(losses) - low) / (np.array(high) - low)
        return float(compute_hypervolume(scaled, np.ones(3)))

    @staticmethod
    def _losses(row: Mapping[str, float]) -> Values:
        return -float(row["valid_perf"]), float(np.log(row["latency"])), float(np.log(row["para"]))

    def spec(self, sampler: str, seed: int, num_trials: int) -> StudySpec:
        """A study of these networks."""
        objectives = [{"metric": metric, "direction": direction} for metric, direction in OBJECTIVES]
        return spec_of(SPACE, objectives, sampler, seed, num_trials)


_GRAPHS = {name: Graphs(name) for name in DATASETS}


def ours(dataset: str, sampler: str, seed: int, num_trials: int) -> float:
    """Hypervolume that ScaMP's sampler finds, one trial after another."""
    graphs = _GRAPHS[dataset]
    search, points, ended = Search(graphs.spec(sampler, seed, num_trials)), list[Values](), list[Trial]()
    for number in range(num_trials):
        (params,) = search.propose(ended, number, 1)
        if (values := graphs.values(params)) is None:
            ended = [Trial(number, params, state=TrialState.INFEASIBLE)]
        else:
            points.append(values)
            ended = [Trial(number, params, values[0], values=values)]
    return graphs.hypervolume(points)


def theirs(dataset: str, sampler: str, seed: int, num_trials: int) -> float:
    """Hypervolume that Optuna's own sampler finds."""
    graphs = _GRAPHS[dataset]
    space, points = Space(graphs.spec("random", 0, num_trials).space), list[Values]()
    directions: list[Any] = [direction for _, direction in OBJECTIVES]
    study = optuna.create_study(directions=directions, sampler=OPTUNA[sampler](seed))
    for _ in range(num_trials):
        trial = study.ask(dict(space.distributions))
        values = graphs.values(asked_params(space, trial))
        if values is None:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            study.tell(trial, values)
            points.append(values)
    return graphs.hypervolume(points)


def nasgraph(samplers: Mapping[str, int], num_trials: int = 100) -> Mapping[str, Any]:
    """Hypervolumes on NAS-Bench-Graph, against random search and Optuna's own samplers."""
    return compared(
        f"NAS-Bench-Graph, {num_trials} trials, hypervolume over random",
        ("nasgraph_hypervolume_vs_random", "nasgraph_hypervolume_vs_optuna"),
        DATASETS,
        samplers,
        num_trials,
        ours,
        theirs,
    )
