"""How much each parameter matters to be among the best trials of a study: PED-ANOVA, as Optuna computes it.

Watanabe et al. 2023 (arXiv:2304.10255), and its form for conditional parameters (arXiv:2601.20800). Only completed
trials count. In a study with several objectives the best are those of the first fronts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Sequence

import optuna
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState

from scamp_service.exchange.frozen_trials import Freezer
from scamp_service.exchange.known_trials import ABOVE_ALL_IDS
from scamp_service.exchange.optuna_space import OptunaSpace
from scamp_service.exchange.optuna_storage import directions_of
from scamp_service.lifecycle import TrialState as OwnState
from scamp_service.model import Study
from scamp_service.search.samplers.optuna_study import optuna_is_silent
from scamp_service.store.store import Store
from scamp_service.study.objectives import Objectives

LEAST_TRIALS = 20
"""Completed trials before importances say anything: the best tenth of them is two."""
MOST_TRIALS = 2000
"""Trials that they are computed from: more are thinned evenly. A best tenth of 200 tells parameters apart."""
MOST_PARAMETERS = 40
"""Parameters that are judged: those that most completed trials have."""


def importances(study: Study, store: Store) -> tuple[int, dict[str, float]]:
    """Number of trials that were judged, and the share of each parameter, the largest first; none if there are few."""
    completed = store.columns(study.id, ("id", "value"), states=[OwnState.COMPLETED])
    ids = [trial_id for _, trial_id, value in completed if value is not None and math.isfinite(value)]
    step = max(1, len(ids) / MOST_TRIALS)
    chosen = [ids[int(index * step)] for index in range(min(len(ids), MOST_TRIALS))]
    if len(chosen) < LEAST_TRIALS:
        return len(chosen), {}
    seen = store.external.seen_trials(study.id, after=ABOVE_ALL_IDS, trial_ids=chosen)
    directions = directions_of(study.spec)
    every = Freezer(store, OptunaSpace(study.spec), Objectives.of_spec(study.spec)).plain(seen)
    trials = [trial for trial in every if len(trial.values or ()) == len(directions)]
    names = _most_common(trials)
    with optuna_is_silent():  # it warns about parameters that few trials have
        shown = optuna.create_study(storage=_Shown(trials), directions=directions)
        shares = PedAnovaImportanceEvaluator().evaluate(shown, names) if names else {}
    total = sum(shares.values())
    return len(trials), {name: value / total for name, value in shares.items()} if total > 0 else {}


def _most_common(trials: Sequence[FrozenTrial]) -> list[str]:
    counts = Counter(name for trial in trials for name in trial.distributions)
    return [name for name, _ in counts.most_common(MOST_PARAMETERS)]


class _Shown(InMemoryStorage):
    """Optuna's storage with these trials, which cannot change."""

    def __init__(self, trials: list[FrozenTrial]) -> None:
        super().__init__()
        self._shown = trials

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """All of them: they are complete."""
        return self._shown
