"""Sees to it that candidates satisfy the constraints of their study before they become trials.

A proposal that breaks one is made again with another seed. If that does not help, the parameters that broken
constraints name are drawn at random, and in the end all of them. A proposal that an earlier study has tried is replaced
in the same way.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from scamp_service.search.draws import draw_from
from scamp_service.search.proposer import SearchEnded
from scamp_service.search.samplers.sampler import seed_of
from scamp_service.search.space import Space
from scamp_service.study.spaces.constraints import ParameterConstraints
from scamp_service.study.spec import StudySpec
from scamp_service.study.values import Params

MOST_PROPOSALS = 10
"""Proposals of the sampler for one trial, before its parameters are drawn at random."""
MOST_DRAWS = 10_000
"""Random draws for one trial."""
MOST_NEW_DRAWS = 200
"""Random draws for one trial whose proposals have all been tried by earlier studies."""


class NoCandidate(SearchEnded):
    """No candidate was found that satisfies the constraints."""


class Constrained:
    """Finds candidates that satisfy the constraints of a study."""

    def __init__(self, spec: StudySpec) -> None:
        self._fixed, self._constraints = spec.fixed, ParameterConstraints(spec.constraints)
        self._space, self._seed = Space(spec.space), spec.search.seed

    def holds(self, params: Params) -> bool:
        """Whether these parameters satisfy the constraints."""
        return not self._broken({**self._fixed, **params}, Counter())

    def completed(self, number: int, chosen: Params, proposed: Params, others: Params, subject: str) -> Params:
        """``proposed`` with ``others``, or with other random values where it breaks constraints, for trial ``number``.

        ``chosen`` flat values stay. Raises ``NoCandidate``.
        """
        broken = Counter[str]()
        for draw in range(MOST_DRAWS):
            params = {**(proposed if draw == 0 else self._draw(number, draw, chosen)), **others}
            if not self._broken({**self._fixed, **params}, broken):
                return params
        raise _none_found(f"no values of the parameters that {subject} leaves out satisfy the constraints", broken)

    def repaired(
        self,
        number: int,
        suggest: Callable[[int], Params | None],
        pick: int = 0,
        is_known: Callable[[Params], bool] = lambda _: False,
    ) -> Params | None:
        """A proposal of a sampler for trial ``number``, with other values where it breaks constraints; None if it ends.

        ``suggest`` gets the number of an attempt; each ``pick`` has numbers of its own. A proposal for which
        ``is_known`` is true is returned only if no other is found. Raises ``NoCandidate``.
        """
        broken, proposed, names, repeats = Counter[str](), Params(), frozenset[str](), list[int]()
        for attempt in range(pick * MOST_PROPOSALS, (pick + 1) * MOST_PROPOSALS):
            params = suggest(attempt)
            if params is None:
                return None
            wrong = self._broken({**self._fixed, **params}, broken)
            if not wrong and is_known(params):
                repeats.append(attempt)
                continue
            if not wrong:
                return params
            if not proposed:
                proposed = params
            names |= frozenset[str]().union(*(expression.names for expression in wrong))
        if repeats:
            draws = (self._draw(number, pick * MOST_DRAWS + draw, {}) for draw in range(1, MOST_NEW_DRAWS + 1))
            new = (params for params in draws if self.holds(params) and not is_known(params))
            return next(new, None) or suggest(repeats[0])
        valid = {name: value for name, value in proposed.items() if name not in names}
        for draw in range(1, MOST_DRAWS + 1):
            params = self._draw(
                number, pick * MOST_DRAWS + draw, self._space.flat(valid) if draw <= MOST_DRAWS // 2 else {}
            )
            wrong = self._broken({**self._fixed, **params}, broken)
            if not wrong:
                return params
            valid = {name: valid[name] for name in valid if not any(name in expression.names for expression in wrong)}
        raise _none_found("the constraints reject every candidate", broken)

    def _draw(self, number: int, draw: int, chosen: Params) -> Params:
        source = random.Random(seed_of(self._seed, number, draw))
        return self._space.sampled(lambda _, distribution: draw_from(distribution, source), chosen)

    def _broken(self, params: Params, count: Counter[str]) -> list[Any]:
        broken = self._constraints.broken(params)
        count.update(expression.source for expression in broken)
        return broken


def _none_found(subject: str, broken: Counter[str]) -> NoCandidate:
    (worst, _), tried = broken.most_common(1)[0], MOST_PROPOSALS + MOST_DRAWS
    return NoCandidate(f"{subject}: of some {tried} that were tried none satisfies all; most break {worst!r}")
