"""Asks a sampler of Optuna for one proposal, in a study of Optuna that is made for this question."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from scamp_service.search.history import Active, Observation
from scamp_service.search.samplers.shown_storage import ShownStorage
from scamp_service.search.space import Space
from scamp_service.study.objectives import Objectives
from scamp_service.study.values import Params

_WARNINGS = threading.RLock()


@contextmanager
def optuna_is_silent() -> Iterator[None]:
    """Leaves out warnings, such as that a feature of Optuna is experimental. Only one thread at a time may do so.

    Optuna also logs nothing but errors from then on.
    """
    with _WARNINGS, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        yield


class OptunaStudy:
    """The trials of one study, as Optuna sees them."""

    def __init__(self, space: Space, objectives: Objectives, *, ranks_infeasible: bool = False) -> None:
        """``ranks_infeasible`` is for samplers that look at completed trials alone, but rank those that exceed a bound
        by how far they do, before they look at values: they are shown such a trial as completed."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)  # otherwise it logs every study and trial
        self._space, self._objectives, self._ranks_infeasible = space, objectives, ranks_infeasible
        self._known: dict[int, tuple[Active | Observation, FrozenTrial]] = {}  # to convert a trial only once

    def ask(
        self,
        sampler: BaseSampler,
        number: int,
        completed: Sequence[Observation] = (),
        active: Sequence[Active] = (),
        fixed: Mapping[str, Any] | None = None,
    ) -> Params:
        """The searched parameters of trial ``number`` that ``sampler`` proposes when it sees these trials.

        ``fixed`` flat parameters stay as they are.
        """
        shown = in_order(completed, active)
        self._known = {trial.number: (trial, self._frozen(trial)) for trial in shown}
        # Its number is that of its trial, unless there are trials that the sampler has not proposed.
        last = shown[-1].number if shown else -1
        storage = ShownStorage([frozen for _, frozen in self._known.values()], max(number, last + 1))
        return self.sampled(self.study(storage, sampler).ask(), fixed)

    def study(self, storage: ShownStorage, sampler: BaseSampler) -> optuna.Study:
        """A study of Optuna over this storage."""
        directions = [objective.direction for objective in self._objectives.items]
        return optuna.create_study(storage=storage, directions=directions, sampler=sampler)

    def sampled(self, trial: Trial, fixed: Mapping[str, Any] | None = None) -> Params:
        """The parameters that are suggested to a trial of Optuna."""
        return self._space.sampled(lambda name, distribution: _suggest(trial, name, distribution), fixed)

    def frozen(self, trial: Active | Observation) -> FrozenTrial:
        """A trial as Optuna has it.

        One without a value is shown as pruned before its first report. Optuna's samplers rank it behind all that
        worked, and so avoid it without an invented value. Optuna knows no pruned trials of several objectives with
        values: one that was stopped early is shown as completed with those that it had.
        """
        state, values, reported = self._result(trial)
        params = self._space.encoded(trial.params)
        frozen_trial = create_trial(
            state=state,
            values=values,
            params=params,
            distributions={name: self._space.distributions[name] for name in params},
            intermediate_values=reported,
            system_attrs=_constraints(trial),
        )
        frozen_trial.number = frozen_trial._trial_id = trial.number
        return frozen_trial

    def _result(self, trial: Active | Observation) -> tuple[TrialState, Sequence[float] | None, dict[int, float]]:
        """Optuna's state, final values and intermediate values of a trial."""
        if isinstance(trial, Active):
            return TrialState.RUNNING, None, {}
        if trial.values is None:
            if self._ranks_infeasible and any(excess > 0 for excess in trial.excesses.values()):
                return TrialState.COMPLETE, [objective.key(math.inf) for objective in self._objectives.items], {}
            return TrialState.PRUNED, None, {}
        if trial.pruned_at is None or self._objectives.has_several:
            return TrialState.COMPLETE, trial.values, {}
        return TrialState.PRUNED, None, {trial.pruned_at: trial.values[0]}

    def _frozen(self, trial: Active | Observation) -> FrozenTrial:
        trial_shown, frozen = self._known.get(trial.number, (None, None))
        return frozen if trial_shown is trial and frozen is not None else self.frozen(trial)


def in_order(completed: Sequence[Observation], active: Sequence[Active]) -> list[Active | Observation]:
    """All of these trials by number."""
    return sorted([*completed, *active], key=lambda trial: trial.number)


def _suggest(trial: Trial, name: str, distribution: BaseDistribution) -> Any:
    match distribution:
        case FloatDistribution(low=low, high=high, step=step, log=log):
            return trial.suggest_float(name, low, high, step=step, log=log)
        case IntDistribution(low=low, high=high, step=step, log=log):
            return trial.suggest_int(name, low, high, step=step, log=log)
        case CategoricalDistribution(choices=choices):
            return trial.suggest_categorical(name, choices)
    raise AssertionError(distribution)


def _constraints(trial: Active | Observation) -> dict[str, float]:
    """The trial's constraints as Optuna stores them (``Trial.set_constraint``), which avoids what exceeds a bound."""
    excesses = trial.excesses if isinstance(trial, Observation) else {}
    return {f"constraints:{name}": excess for name, excess in excesses.items()}
