"""Asks samplers of Optuna that keep notes in the study: the generation of each trial, the state of an optimizer.

The notes are not stored. They are made again from the history: the sampler is asked for each earlier trial in turn,
with the seed of that trial, and the trial then gets the parameters and the result that it really has. Where only the
newest trials have changed since the last proposal, only those are asked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from scamp_service.search.history import Active, Observation
from scamp_service.search.samplers.optuna_study import OptunaStudy, in_order, optuna_is_silent
from scamp_service.search.samplers.shown_storage import ShownStorage
from scamp_service.search.space import Space
from scamp_service.study.objectives import Objectives
from scamp_service.study.values import Params


@dataclass(frozen=True, slots=True)
class _Played:
    """A trial that was asked for, and the notes about the study from before it."""

    trial: Active | Observation
    frozen: FrozenTrial
    notes_before: dict[str, Any]


class ReplayedStudy:
    """A study of Optuna with notes. ``make`` returns the sampler for trial ``number`` at this ``attempt``."""

    def __init__(
        self,
        space: Space,
        objectives: Objectives,
        make: Callable[[int, int], BaseSampler],
        *,
        ranks_infeasible: bool = False,
    ) -> None:
        self._study, self._make = OptunaStudy(space, objectives, ranks_infeasible=ranks_infeasible), make
        self._played: list[_Played] = []
        self._notes: dict[str, Any] = {}

    def ask(self, number: int, completed: Sequence[Observation], active: Sequence[Active], attempt: int) -> Params:
        """The searched parameters of trial ``number`` that the sampler proposes after these trials."""
        earlier = in_order(completed, active)
        self._keep_equal(earlier)
        for trial in earlier[len(self._played) :]:
            self._play(trial)
        storage = self._storage(max(number, earlier[-1].number + 1 if earlier else 0))
        with optuna_is_silent():
            return self._study.sampled(self._study.study(storage, self._make(number, attempt)).ask())

    def _keep_equal(self, earlier: Sequence[Active | Observation]) -> None:
        for index, played in enumerate(self._played):
            if index >= len(earlier) or played.trial != earlier[index]:
                self._notes = played.notes_before
                del self._played[index:]
                return

    def _play(self, trial: Active | Observation) -> None:
        storage, before = self._storage(trial.number), self._notes
        frozen = self._study.frozen(trial)
        with optuna_is_silent():
            sampler = self._make(trial.number, 0)
            study = self._study.study(storage, sampler)
            optuna_trial = study.ask()
            _ = optuna_trial.relative_params  # this makes the notes
            frozen.system_attrs.update(storage.asked.system_attrs)
            if frozen.state is not TrialState.RUNNING:
                sampler.after_trial(study, frozen, frozen.state, frozen.values)
        self._notes = storage.notes
        self._played.append(_Played(trial, frozen, before))

    def _storage(self, number: int) -> ShownStorage:
        return ShownStorage([trial.frozen for trial in self._played], number, self._notes)
