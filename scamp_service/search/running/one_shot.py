"""Proposes the trials of a one-shot search: the supernet, the candidates of the study's sampler, and the best of them.

What is proposed follows from the trials alone, so a controller that was started again continues as the one before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol

from scamp_service.lifecycle import Origin, TrialState
from scamp_service.search.history import Past, PastTrial
from scamp_service.search.proposer import SearchEnded
from scamp_service.study.one_shot import SUPERNET, OneShot, is_supernet
from scamp_service.study.spec import StudySpec
from scamp_service.study.values import Params


class InnerSearch(Protocol):
    """Proposes candidates, as ``proposals.Search`` does."""

    @property
    def reasons(self) -> Sequence[str]: ...

    def propose(self, history: Iterable[Past], first_number: int, count: int) -> list[Params]: ...

    def close(self) -> None: ...


class OneShotSearch:
    """Proposes the trials of one study. The sampler behind it sees only the candidates that are scored."""

    def __init__(self, spec: StudySpec, options: OneShot, search: InnerSearch) -> None:
        self._spec, self._options, self._search = spec, options, search
        self._supernet: Past | None = None
        self._scored: dict[int, Past] = {}
        self.regret: float | None = None
        """Not known: the terminator is for other searches."""
        self.parents: Sequence[int | None] = ()
        """For each candidate that was proposed last the trial with whose weights it begins; empty if none has one."""
        self.reasons: Sequence[str] = ()
        """As in ``Search``."""

    def propose(self, history: Iterable[Past], first_number: int, count: int) -> list[Params]:
        """Parameters of proposals ``first_number``, …, all of one part of the search; none when all parts have ended.

        Raises ``SearchEnded`` if the supernet has not trained, or no candidate has a score.
        """
        seen = [self._noted(past) for past in history]
        self.parents, self.reasons = (), ()
        count = min(count, self._options.num_until_wait(first_number))
        if first_number == 0:
            return [{**self._spec.fixed, SUPERNET: True}]
        if first_number <= self._options.candidates:
            supernet = self._trained_supernet()
            candidates = self._search.propose(seen, first_number - 1, count)
            self.parents, self.reasons = [supernet.number] * len(candidates), self._search.reasons
            return candidates
        return self._best(first_number - 1 - self._options.candidates, count)

    def close(self) -> None:
        """Close the sampler."""
        self._search.close()

    def _noted(self, past: Past) -> Past:
        """The trial as the sampler sees it."""
        if past.origin is Origin.SEARCH and is_supernet(past.params):
            self._supernet = past
            return PastTrial.of(past, origin=Origin.EXTERNAL)  # the sampler does not count it among its own
        self._scored.pop(past.number, None)
        is_scored = past.origin is Origin.SEARCH and past.state is TrialState.PRUNED and past.step == 0
        if is_scored and _is_finite(past.value):
            self._scored[past.number] = past
        return past

    def _trained_supernet(self) -> Past:
        supernet = self._supernet
        if supernet is None or supernet.state is not TrialState.PRUNED or not _is_finite(supernet.value):
            raise SearchEnded("the supernet did not train to its end, so no candidate can be scored with its weights")
        return supernet

    def _best(self, first: int, count: int) -> list[Params]:
        if not self._scored:
            raise SearchEnded("no candidate has a score with the weights of the supernet")
        ranked = sorted(
            self._scored.values(), key=lambda trial: (self._spec.objective.key(trial.value or 0.0), trial.number)
        )
        different: list[Params] = []
        for past in ranked:
            if dict(past.params) not in different:
                different.append(dict(past.params))
        return different[: self._options.best][first : first + count]


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
