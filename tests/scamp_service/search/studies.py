"""Studies of samplers: specs, trials, and ways in which trials end."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scamp_service.lifecycle import Origin
from scamp_service.lifecycle import TrialState as S
from scamp_service.search.proposals import Search
from scamp_service.study.parse import parse_study
from scamp_service.study.spec import StudySpec
from scamp_service.study.values import Params

SPACE = {
    "lr": {"low": 1e-5, "high": 1.0, "log": True},
    "depth": {"low": 1, "high": 12},
    "width": {"low": 32, "high": 100, "step": 32},
    "dropout": {"low": 0.0, "high": 0.35, "step": 0.1},
    "act": {"choice": ["relu", "gelu", 0.5, False]},
}
CONDITIONAL: dict[str, Any] = {
    "optimizer": {"choice": ["sgd", "adam", None]},
    "momentum": {"choice": [0.0, 0.5, 0.9], "when": {"optimizer": "sgd"}},
    "nesterov": {"choice": [True, False], "when": {"momentum": 0.9}},
    "width": {"ordinal": [8, 16, 32, 64]},
    "layers": {
        "repeat": {"low": 1, "high": 3},
        "each": {
            "op": {"choice": ["conv", "skip", "drop"]},
            "kernel": {"choice": [[1, 1], [3, 3], None], "when": {"op": "conv"}},
            "rate": {"low": 0.1, "high": 0.9, "when": {"op": ["conv", "drop"], "optimizer": ["sgd", "adam"]}},
        },
    },
}
"""Conditions inside and across blocks, on values of all kinds."""
GRID = {"a": {"choice": ["x", "y"]}, "b": {"low": 1, "high": 6, "step": 2}, "c": {"low": 0.0, "high": 0.3, "step": 0.1}}


@dataclass(frozen=True)
class Trial:
    number: int
    params: Params
    state: S = S.RUNNING
    step: int = 0
    value: float | None = None
    values: Sequence[float | None] | None = None
    origin: Origin = Origin.SEARCH
    quantities: Mapping[str, float | None] = field(default_factory=dict)


def study(space: dict[str, Any] = SPACE, sampler: str | dict[str, Any] = "tpe", **more: Any) -> StudySpec:
    head = {"name": "s", "workload": "w", "objective": {"metric": "m", "direction": "minimize"}, "space": space}
    more = {"budget": {"trials": 5000}, "search": {"sampler": sampler, "seed": 3}, **more}
    return parse_study({**head, **more})


def distance(params: Params) -> float:
    """Least at lr = 1e-2, depth = 4."""
    lr, depth = params["lr"], params["depth"]
    assert isinstance(lr, float) and isinstance(depth, int)
    return (math.log10(lr) + 2) ** 2 + (depth - 4) ** 2 / 9


def live(search: Search, end: Callable[[Trial], Trial], num_trials: int, at_once: int = 4) -> list[Trial]:
    """A study that runs ``at_once`` trials at a time, the oldest ending first."""
    trials: list[Trial] = []
    while len(trials) < num_trials:
        proposed = search.propose(trials, len(trials), 1)
        trials += [Trial(len(trials), params) for params in proposed]
        if len(trials) >= at_once:
            trials[-at_once] = end(trials[-at_once])
    return trials


def completed(trial: Trial) -> Trial:
    return replace(trial, state=S.COMPLETED, value=distance(trial.params), step=100)


def mixed(trial: Trial) -> Trial:
    """Every way a trial can end, each with the values that it then has."""
    value = hash_value(trial.params)
    ends = [
        replace(trial, state=S.COMPLETED, value=value, step=100),
        replace(trial, state=S.PRUNED, value=value, step=10),
        replace(trial, state=S.PRUNED, value=math.nan, step=10),
        replace(trial, state=S.PRUNED, value=None),
        replace(trial, state=S.INFEASIBLE),
        replace(trial, state=S.FAILED),
        replace(trial, state=S.CANCELLED, value=value, step=10),
        replace(trial, state=S.COMPLETED, value=math.inf, step=100),
        replace(trial, state=S.COMPLETED, value=value, step=100),
    ]
    return ends[trial.number % len(ends)]


def hash_value(params: Params) -> float:
    """Some value that the parameters alone decide."""
    return random.Random(str(sorted(params.items()))).random()


def course(num_trials: int, seed: int, space: dict[str, Any] = SPACE) -> Iterator[Trial]:
    """Trials of a study as they are created and end, each as often as it changes, many at once and out of order."""
    random_params = Search(study(space, "random")).propose([], 0, num_trials)
    source, live_trials = random.Random(seed), list[Trial]()
    for number, params in enumerate(random_params):
        live_trials.append(Trial(number, params, S.QUEUED))
        yield live_trials[-1]
        while len(live_trials) > source.randrange(12):
            yield mixed(live_trials.pop(source.randrange(len(live_trials))))
