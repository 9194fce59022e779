"""How much each parameter matters to be among the best trials of a study: PED-ANOVA, as Optuna computes it.

Watanabe et al. 2023 (arXiv:2304.10255), and its form for conditional parameters (arXiv:2601.20800). It asks only which
trials are the best, so those that were stopped early count, too: they follow the completed ones, and the later one was
stopped, the better it is. In a study with several objectives the best are those of the first fronts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING

import optuna
from optuna.storages import InMemoryStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from scamp.lean_imports import without
from scamp_service.exchange.frozen_trials import Freezer
from scamp_service.exchange.known_trials import ABOVE_ALL_IDS
from scamp_service.exchange.optuna_space import OptunaSpace
from scamp_service.exchange.optuna_storage import directions_of
from scamp_service.lifecycle import TrialState as OwnState
from scamp_service.model import Study
from scamp_service.search.samplers.optuna_study import optuna_is_silent
from scamp_service.store.store import Store
from scamp_service.study.objectives import Objectives

if TYPE_CHECKING:
    from optuna.importance import PedAnovaImportanceEvaluator

LEAST_TRIALS = 8
"""Trials with a value before importances say anything. PED-ANOVA compares the best tenth, at least two, with all."""
MOST_TRIALS = 2000
"""Trials that they are computed from: more are thinned evenly. A best tenth of 200 tells parameters apart."""
MOST_PARAMETERS = 40
"""Parameters that are judged: those that most of these trials have."""


def importances(study: Study, store: Store) -> tuple[int, dict[str, float]]:
    """Number of trials that were judged, and the share of each parameter, the largest first; none if there are few."""
    ended = store.table.columns(study.id, ("id", "value"), states=[OwnState.COMPLETED, OwnState.PRUNED])
    values = zip(ended["id"], ended["value"], strict=True)
    ids = [trial_id for trial_id, value in values if value is not None and math.isfinite(value)]
    step = max(1, len(ids) / MOST_TRIALS)
    chosen = [ids[int(index * step)] for index in range(min(len(ids), MOST_TRIALS))]
    if len(chosen) < LEAST_TRIALS:
        return len(chosen), {}
    seen = store.external.seen_trials(study.id, after=ABOVE_ALL_IDS, trial_ids=chosen)
    directions, objectives = directions_of(study.spec), Objectives.of_spec(study.spec)
    every = Freezer(store, OptunaSpace(study.spec), objectives).plain(seen)
    steps = {row.number: row.step for row in seen}
    trials = [trial for trial in every if len(trial.values or ()) == len(directions)]
    if not objectives.has_several:
        replace_by_ranks(trials, steps, objectives)
        directions = [StudyDirection.MINIMIZE]
    for trial in trials:
        trial.state = TrialState.COMPLETE
    names = _most_common(trials)
    with optuna_is_silent():  # it warns about parameters that few trials have
        shown = optuna.create_study(storage=_Shown(trials), directions=directions)
        shares = ped_anova().evaluate(shown, names) if names else {}
    total = sum(shares.values())
    return len(trials), {name: value / total for name, value in shares.items()} if total > 0 else {}


def replace_by_ranks(trials: Sequence[FrozenTrial], steps: Mapping[int, int], objectives: Objectives) -> None:
    """Replace the values of trials of one objective by their ranks, 0 for the best.

    A value after few steps is not comparable with one after many, so a trial that was stopped early follows all that
    completed and those that were stopped later.
    """

    def key(trial: FrozenTrial) -> tuple[float, ...]:
        progress = (0, 0) if trial.state is TrialState.COMPLETE else (1, -steps[trial.number])
        return (*progress, *objectives.keys(trial.values))

    keys = [key(trial) for trial in trials]
    ranks = {key: rank for rank, key in enumerate(sorted(set(keys)))}
    for trial, its_key in zip(trials, keys, strict=True):
        trial.values = [float(ranks[its_key])]


def ped_anova() -> PedAnovaImportanceEvaluator:
    """PED-ANOVA, imported in a tenth of a second; with it Optuna imports other evaluators, which need scikit-learn."""
    with without("sklearn"):
        from optuna.importance import PedAnovaImportanceEvaluator
    return PedAnovaImportanceEvaluator()


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
