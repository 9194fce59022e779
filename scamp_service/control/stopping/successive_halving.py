"""Asynchronous successive halving (Li et al. 2020, arXiv:1810.05934).

A trial is judged when it reaches a rung and never waits for others, so no device idles. A trial that continued only
because it was early is judged again at the next rung. Trials are not paused and promoted later: a stop is final.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from scamp_service.control.stopping.rule import Continue, Stop, Verdict
from scamp_service.control.stopping.rung import Rung
from scamp_service.model import Trial
from scamp_service.study.spec import StudySpec


@dataclass(frozen=True, slots=True)
class SuccessiveHalving:
    """At a rung, the best 1/``reduction_factor`` of the trials that have reached it continue."""

    rungs: tuple[int, ...]
    reduction_factor: int

    @classmethod
    def of_spec(cls, spec: StudySpec) -> Self:
        """The rule with rungs at min_steps × reduction_factor^k below the last step, rounded up to a report.

        Without ``min_steps`` the first rung is the first report.
        """
        every, rung, steps = spec.report_every, spec.stopping.min_steps or spec.report_every, []
        while (reported := math.ceil(rung / every) * every) < spec.budget.steps:
            steps.append(reported)
            rung *= spec.stopping.reduction_factor
        return cls(tuple(dict.fromkeys(steps)), spec.stopping.reduction_factor)

    def judge(self, trial: Trial, rung: int, reported: Mapping[int, Rung]) -> Verdict:
        """Stop the trial unless it is among the best at the step ``rung``.

        Of n values the best ⌈n / reduction_factor⌉ continue, and so does any value equal to the last of these. No trial
        stops until ``reduction_factor`` trials have reported. With fewer, the best 1/reduction_factor would be less
        than one trial; stopping the second trial merely because it is behind the first (as Optuna and Ray do) would let
        the order of arrival decide. A trial whose value is not finite stops at once, because it cannot be compared.
        """
        peers, step = reported[rung], trial.step
        value = peers[trial.id]
        be, then = ("is", "") if step == rung else ("was", f" at step {rung}")
        if not math.isfinite(value):
            advice = "if evaluate cannot compute it so early, raise stopping.min_steps"
            return Stop(
                f"stopped at step {step}: the objective {be} {value}{then}, which compares with no other; {advice}"
            )
        num_peers, num_keep = len(peers), math.ceil(len(peers) / self.reduction_factor)
        rank = 1 + peers.num_better(value)
        if num_peers < self.reduction_factor:
            few = f"no trial stops until {self.reduction_factor} have reported"
            return Continue(f"continues after step {step}: {value:.4g} {be} number {rank} of {num_peers}{then}; {few}")
        kept = f"the best {num_keep} continue" if num_keep > 1 else "only the best one continues"
        place = f"{value:.4g} {be} number {rank} of {num_peers}{then}, and {kept}"
        if rank > num_keep:
            return Stop(f"stopped at step {step}: {place}")
        return Continue(f"continues after step {step}: {place}")
