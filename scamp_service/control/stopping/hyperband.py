"""Asynchronous Hyperband (Li et al. 2018, arXiv:1603.06560; asynchronous as in arXiv:1810.05934, section 3.2).

Successive halving trusts what a trial has reported at the first rung. Hyperband hedges: some brackets of trials are
judged later for the first time.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate

from scamp_service.control.stopping.rule import Continue, Verdict, broken_value
from scamp_service.control.stopping.rung import Rung
from scamp_service.control.stopping.successive_halving import SuccessiveHalving, halving_rungs
from scamp_service.model import Trial
from scamp_service.study.spec import StudySpec
from scamp_service.study.stopping import HyperbandOptions


@dataclass(frozen=True)  # without slots, which a cached property cannot have
class Hyperband:
    """Brackets of successive halving: the first judges at every rung, the next leaves the first rung out, and so on."""

    brackets: tuple[SuccessiveHalving, ...]
    seed: int

    @classmethod
    def of_options(cls, options: HyperbandOptions, spec: StudySpec) -> Hyperband:
        """The rule of a study. The last bracket never judges, unless fewer brackets were asked for."""
        factor = options.reduction_factor
        rungs = halving_rungs(spec, options.min_steps, factor)
        most = min(len(rungs) + 1, options.brackets or len(rungs) + 1)
        return cls(
            tuple(SuccessiveHalving(rungs[first:], factor, options.promote, spec.budget.unit) for first in range(most)),
            spec.search.seed,
        )

    @property
    def rungs(self) -> tuple[int, ...]:
        """The rungs of the first bracket, which has the most."""
        return self.brackets[0].rungs

    def pauses_at(self, number: int) -> tuple[int, ...]:
        """The rungs of the trial's bracket, if its trials are promoted."""
        return self.brackets[self.bracket_of(number)].pauses_at(number)

    def judge(self, trial: Trial, rung: int, reported: Mapping[int, Rung], *, is_last: bool) -> Verdict:
        """Compare the trial with those of its own bracket; let it continue at a rung that the bracket leaves out."""
        index = self.bracket_of(trial.number)
        bracket = self.brackets[index]
        if not reported[rung].is_finite(trial.number):
            return broken_value(reported[rung][trial.number], trial.step, rung, bracket.unit)
        if rung not in bracket.rungs:
            first = f"first at {bracket.unit} {bracket.rungs[0]}" if bracket.rungs else "nowhere"
            return Continue(f"continues after {bracket.unit} {trial.step}: its bracket {index + 1} is judged {first}")
        peers = reported[rung].among((self, index), partial(self._is_in, index))
        verdict = bracket.judge(trial, rung, {rung: peers}, is_last=is_last)
        return replace(verdict, reason=f"{verdict.reason} (in bracket {index + 1} of {len(self.brackets)})")

    def bracket_of(self, number: int) -> int:
        """Index of the bracket of trial ``number``: drawn by the study's seed, in proportion to ``_shares``."""
        digest = hashlib.sha256(f"bracket/{self.seed}/{number}".encode()).digest()
        return bisect_right(self._shares, int.from_bytes(digest[:4]) / 2**32 * self._shares[-1])

    def _is_in(self, index: int, number: int) -> bool:
        return self.bracket_of(number) == index

    @cached_property
    def _shares(self) -> list[float]:
        """Running sums of the brackets' shares of trials, by which each costs about the same number of steps.

        The first of b brackets has reduction_factor^(b-1) / b trials, the next one reduction_factor^(b-2) / (b-1), …
        """
        num, factor = len(self.brackets), self.brackets[0].reduction_factor
        return list(accumulate(math.ceil(num * factor**left / (left + 1)) for left in range(num - 1, -1, -1)))
