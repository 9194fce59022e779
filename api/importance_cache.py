"""Keeps the importances of parameters, which take a while to compute, until more trials have ended."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from scamp_service.lifecycle import LIVE_STUDIES, TrialState
from scamp_service.model import Study
from scamp_service.store.store import Store

MOST_KEPT = 100
GROWTH = 50
"""While a study is live they are computed again when this fraction more trials have ended."""
ROUGH_BELOW = 20
"""Trials below which importances are called rough: the best tenth would be fewer than two."""


@dataclass(frozen=True, slots=True)
class Importances:
    """Share of each parameter, the largest first. They add up to 1; none while too few trials have a value."""

    num_ended: int  # completed or stopped early
    num_trials: int  # that they are computed from
    shares: Mapping[str, float]

    @property
    def is_rough(self) -> bool:
        """Whether the trials are too few to trust the shares."""
        return self.num_trials < ROUGH_BELOW


class ImportanceCache:
    """The importances of the studies that were looked at last. Safe for threads: one is computed at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._known: OrderedDict[int, Importances] = OrderedDict()

    def of(self, study: Study) -> Importances:
        """The study's importances. In a live study they may lag a few trials behind."""
        counts = self._store.counts.states(study.id)
        num = counts.get(TrialState.COMPLETED, 0) + counts.get(TrialState.PRUNED, 0)
        with self._lock:
            importances = self._known.get(study.id)
            rest = importances.num_ended // GROWTH if importances and study.state in LIVE_STUDIES else 0
            if importances is None or abs(num - importances.num_ended) > rest:
                importances = Importances(num, *self._computed(study))
                self._known[study.id] = importances
            self._known.move_to_end(study.id)
            while len(self._known) > MOST_KEPT:
                self._known.popitem(last=False)
            return importances

    def _computed(self, study: Study) -> tuple[int, Mapping[str, float]]:
        from scamp_service.exchange.importances import importances  # here, as it imports Optuna, which takes a while

        return importances(study, self._store)
