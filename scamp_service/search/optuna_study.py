"""Asks a sampler of Optuna for one proposal, in a study of Optuna that is made for this question."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from scamp_service.search.history import Active, Completed
from scamp_service.search.space import Space
from scamp_service.study.values import Params

_WARNINGS = threading.Lock()


@contextmanager
def optuna_is_silent() -> Iterator[None]:
    """Leaves out warnings, such as that a feature of Optuna is experimental. Only one thread at a time may do so."""
    with _WARNINGS, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class OptunaStudy:
    """The trials of one study, as Optuna sees them."""

    def __init__(self, space: Space, direction: Literal["maximize", "minimize"]) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # otherwise it logs every study and trial
        self._space, self._direction = space, direction
        self._known: dict[int, tuple[Active | Completed, FrozenTrial]] = {}  # to convert a trial only once

    def ask(
        self,
        sampler: BaseSampler,
        completed: Sequence[Completed] = (),
        active: Sequence[Active] = (),
        given: Mapping[str, Any] | None = None,
    ) -> Params:
        """The searched parameters that ``sampler`` proposes when it sees these trials; ``given`` ones stay."""
        seen: list[Active | Completed] = [*completed, *active]
        shown = sorted(seen, key=lambda trial: trial.number)
        self._known = {trial.number: (trial, self._frozen(trial)) for trial in shown}
        storage = _Shown([frozen for _, frozen in self._known.values()])
        study = optuna.create_study(storage=storage, direction=self._direction, sampler=sampler)
        trial = study.ask()
        return self._space.sampled(lambda name, distribution: _suggest(trial, name, distribution), given)

    def _frozen(self, trial: Active | Completed) -> FrozenTrial:
        known, frozen = self._known.get(trial.number, (None, None))
        if known is trial and frozen is not None:
            return frozen
        state, value, reported = _result(trial)
        params = self._space.encoded(trial.params)
        made = create_trial(
            state=state,
            value=value,
            params=params,
            distributions={name: self._space.distributions[name] for name in params},
            intermediate_values=reported,
        )
        made.number = trial.number + 1  # the trial that is asked for has number 0: see _Shown
        return made


class _Shown(InMemoryStorage):
    """Optuna's storage for one proposal: the only trial in it is the one that is asked for, and it lists others."""

    def __init__(self, shown: Sequence[FrozenTrial]) -> None:
        super().__init__()
        self._shown = shown

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """The trials that the sampler may see."""
        return [trial for trial in self._shown if states is None or trial.state in states]


def _suggest(trial: Trial, name: str, distribution: BaseDistribution) -> Any:
    match distribution:
        case FloatDistribution(low=low, high=high, step=step, log=log):
            return trial.suggest_float(name, low, high, step=step, log=log)
        case IntDistribution(low=low, high=high, step=step, log=log):
            return trial.suggest_int(name, low, high, step=step, log=log)
        case CategoricalDistribution(choices=choices):
            return trial.suggest_categorical(name, choices)
    raise AssertionError(distribution)


def _result(trial: Active | Completed) -> tuple[TrialState, float | None, dict[int, float]]:
    """Optuna's state, final value and intermediate values of a trial.

    One without a value is shown as pruned before its first report. TPE ranks it behind all that worked, and so avoids
    it without an invented value.
    """
    if isinstance(trial, Active):
        return TrialState.RUNNING, None, {}
    if trial.value is None:
        return TrialState.PRUNED, None, {}
    if trial.pruned_at is None:
        return TrialState.COMPLETE, trial.value, {}
    return TrialState.PRUNED, None, {trial.pruned_at: trial.value}
