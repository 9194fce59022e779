"""Compares the candidates of ScaMP's samplers with those of Optuna's own, in one study each, one trial after another.

Optuna's study holds its trials in memory, as Optuna keeps them, and gets for each trial a sampler with the seed that
ScaMP uses for it (``seed_of``). ScaMP's search sees the finished trials alone, as after a restart.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.samplers import BaseSampler

from scamp_service.lifecycle import Origin, TrialState
from scamp_service.search.proposals import Search
from scamp_service.search.samplers.sampler import seed_of
from scamp_service.study.parse import parse_study
from scamp_service.study.values import Params

SPACE: Mapping[str, Any] = {
    "lr": {"low": 1e-5, "high": 1.0, "log": True},
    "depth": {"low": 1, "high": 12},
    "width": {"low": 32, "high": 256, "step": 32},
    "dropout": {"low": 0.0, "high": 0.5},
    "act": {"choice": ["relu", "gelu", "silu"]},
}
COUNTABLE = {name: SPACE[name] for name in ("depth", "width", "act")}
CONDITIONAL: Mapping[str, Any] = {
    **SPACE,
    "gate": {"choice": [True, False], "when": {"act": "silu"}},
    "slope": {"low": 0.0, "high": 1.0, "when": {"act": ["relu", "gelu"]}},
}


@dataclass(frozen=True, slots=True)
class Case:
    """A sampler with options, a space, and how to make Optuna's own: from the study's seed and the trial's."""

    sampler: Mapping[str, Any]
    make: Callable[[int, int], BaseSampler]
    space: Mapping[str, Any] = field(default_factory=lambda: SPACE)
    trials: int = 40


_S = optuna.samplers
CASES: Mapping[str, Case] = {
    "random": Case({"name": "random"}, lambda _, seed: _S.RandomSampler(seed=seed)),
    "qmc": Case(
        {"name": "qmc", "scramble": True},
        lambda study, seed: _S.QMCSampler(
            scramble=True,
            seed=study,
            independent_sampler=_S.RandomSampler(seed=seed),
            warn_independent_sampling=False,
        ),
    ),
    "tpe": Case({"name": "tpe"}, lambda _, seed: _S.TPESampler(seed=seed)),
    "tpe, univariate": Case(
        {"name": "tpe", "multivariate": False, "constant_liar": False},
        lambda _, seed: _S.TPESampler(seed=seed, multivariate=False, constant_liar=False),
    ),
    "tpe, group": Case(
        {"name": "tpe", "multivariate": True, "group": True},
        lambda _, seed: _S.TPESampler(seed=seed, multivariate=True, group=True),
        CONDITIONAL,
    ),
    "gp": Case({"name": "gp"}, lambda _, seed: _S.GPSampler(seed=seed), trials=13),
    "cmaes": Case({"name": "cmaes"}, lambda _, seed: _S.CmaEsSampler(seed=seed, warn_independent_sampling=False)),
    "nsga2": Case(
        {"name": "nsga2", "population_size": 8}, lambda _, seed: _S.NSGAIISampler(seed=seed, population_size=8)
    ),
    "nsga3": Case(
        {"name": "nsga3", "population_size": 8}, lambda _, seed: _S.NSGAIIISampler(seed=seed, population_size=8)
    ),
    "brute_force": Case({"name": "brute_force"}, lambda _, seed: _S.BruteForceSampler(seed=seed), COUNTABLE),
}


@dataclass(frozen=True)
class _Past:
    number: int
    params: Params
    state: TrialState
    step: int
    value: float | None
    values: Sequence[float | None] | None = None
    origin: Origin = Origin.SEARCH
    quantities: Mapping[str, float | None] = field(default_factory=dict)


def objective(params: Mapping[str, Any]) -> float:
    """A smooth function with its least value inside the space."""
    value = (params["depth"] - 5) ** 2 / 10 + abs(params["width"] - 160) / 100
    value += (math.log10(params.get("lr", 1e-2)) + 2) ** 2 + params.get("dropout", 0.1)
    return value + {"relu": 0.5, "gelu": 0.0, "silu": 0.2}[params["act"]] - 0.1 * params.get("slope", 0.0)


def first_difference(case: Case, seed: int) -> int | None:
    """Number of the first trial for which the two propose different candidates; None if there is none."""
    spec = parse_study({
        "name": "equal", "workload": "w", "objective": {"metric": "m", "direction": "minimize"}, "space": case.space,
        "search": {"sampler": case.sampler, "seed": seed},
    })  # fmt: skip
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study, past = optuna.create_study(), list[_Past]()
    for number in range(case.trials):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            study.sampler = case.make(seed, seed_of(seed, number))
        trial = study.ask()
        theirs = suggested(trial, case.space)
        ours = Search(spec).propose(past, number, 1)
        if ours != [theirs]:
            return number
        value = objective(theirs)
        study.tell(trial, value)
        past.append(_Past(number, theirs, TrialState.COMPLETED, 100, value))
    return None


def suggested(trial: optuna.Trial, space: Mapping[str, Any]) -> Params:
    """The parameters as a user of Optuna asks for them, one after another."""
    params = Params()
    for name, dimension in space.items():
        allowed = {of: value if isinstance(value, list) else [value] for of, value in dimension.get("when", {}).items()}
        if any(params.get(of) not in values for of, values in allowed.items()):
            continue
        if "choice" in dimension:
            params[name] = trial.suggest_categorical(name, dimension["choice"])
        elif isinstance(dimension["low"], int):
            params[name] = trial.suggest_int(name, dimension["low"], dimension["high"], step=dimension.get("step", 1))
        else:
            params[name] = trial.suggest_float(
                name, dimension["low"], dimension["high"], log=dimension.get("log", False)
            )
    return params
