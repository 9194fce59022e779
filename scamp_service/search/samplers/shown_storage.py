"""Optuna's storage for one proposal: the earlier trials that a sampler is shown, and the one that it is asked for.

It holds no more than samplers read and write. Ids of trials are their numbers.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState


class ShownStorage(InMemoryStorage):
    """The only trial in it that can change is the one with this ``number``. ``notes`` are attributes of the study."""

    def __init__(self, shown: Sequence[FrozenTrial], number: int, notes: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._shown, self.notes = shown, dict(notes or {})
        self.asked = FrozenTrial(
            number=number,
            trial_id=number,
            state=TrialState.RUNNING,
            value=None,
            datetime_start=None,
            datetime_complete=None,
            params={},
            distributions={},
            user_attrs={},
            system_attrs={},
            intermediate_values={},
        )
        """The trial that is asked for."""

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """Id of the trial that is asked for."""
        return self.asked.number

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """The trial that is asked for."""
        assert trial_id == self.asked.number
        return self.asked

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """The trials that the sampler may see, the one that is asked for last."""
        shown = [trial for trial in self._shown if states is None or trial.state in states]
        return [*shown, self.asked] if states is None or self.asked.state in states else shown

    def set_trial_param(
        self, trial_id: int, param_name: str, param_value_internal: float, distribution: BaseDistribution
    ) -> None:
        """Set a parameter of the trial that is asked for."""
        trial = self.get_trial(trial_id)
        trial.params = {**trial.params, param_name: distribution.to_external_repr(param_value_internal)}
        trial.distributions = {**trial.distributions, param_name: distribution}

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        """The notes about the study."""
        return self.notes

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        """Note something about the study."""
        self.notes[key] = value

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Note something about the trial that is asked for."""
        self.get_trial(trial_id).system_attrs[key] = value
