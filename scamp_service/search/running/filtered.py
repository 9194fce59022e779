"""Chooses each trial among several proposals by a zero-cost proxy, before anything is launched.

The proposals that lose are dropped: they never become trials, and the sampler does not learn of them. So only the
trials must survive a crash: the next controller asks for the same proposals, and their scores are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from scamp_service.search.history import Past
from scamp_service.search.proposals import Search
from scamp_service.search.running.remote_search import RemoteSearch
from scamp_service.study.search_options import Filter
from scamp_service.study.values import Params

Score = Callable[[Sequence[Params]], Sequence[float | None]]
"""A function that returns the proxy of each candidate, the more the better; None where there is none."""


class FilteredSearch:
    """Proposes the candidates of one study, one trial at a time."""

    def __init__(self, search: Search | RemoteSearch, chosen_by: Filter, score: Score) -> None:
        self._search, self._filter, self._score = search, chosen_by, score
        self.parents: Sequence[int | None] = ()
        """As in ``Search``."""
        self.reasons: Sequence[str] = ()
        """As in ``Search``."""
        self.regret: float | None = None
        """As in ``Search``."""

    def propose(self, history: Iterable[Past], first_number: int, count: int) -> list[Params]:
        """Parameters of the proposal ``first_number`` alone; none at the sampler's end. Raises what ``Search`` does."""
        picks = self._search.propose(history, first_number, 1, self._filter.of)
        self.parents, self.reasons, self.regret = self._search.parents, (), self._search.regret
        if len(picks) <= 1:
            return picks
        scores = self._score(picks)
        best = max(range(len(picks)), key=lambda index: (_comparable(scores[index]), -index))
        self.parents, self.reasons = self.parents[best : best + 1], [self._why(scores, best)]
        return [picks[best]]

    def _why(self, scores: Sequence[float | None], best: int) -> str:
        """The scores of all proposals, in words."""
        proxy, best_score = self._filter.proxy, scores[best]
        if best_score is None:
            return f"the first of {len(scores)} proposals, as {proxy} has no value for any of them"
        others = [score for index, score in enumerate(scores) if index != best]
        sorted_scores = sorted((score for score in others if score is not None), reverse=True)
        words = [f"{score:.4g}" for score in sorted_scores] + ["no value"] * (len(others) - len(sorted_scores))
        return f"the best of {len(scores)} proposals by {proxy}: {best_score:.4g}, the others {', '.join(words)}"

    def close(self) -> None:
        """End the sampler's process, if it has one."""
        self._search.close()


def _comparable(score: float | None) -> float:
    """A score to compare; candidates without one come last."""
    return float("-inf") if score is None else score
