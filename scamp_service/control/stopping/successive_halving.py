"""Asynchronous successive halving (Li et al. 2020, arXiv:1810.05934), by stopping or by promotion.

By stopping, a trial is judged when it reaches a rung and never waits for others, so no device idles; a stop is final.
By promotion, each trial is paused at a rung, and continues once it is among the best there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from scamp_service.control.stopping.rule import Continue, Pause, Stop, Verdict, broken_value, was_at
from scamp_service.control.stopping.rung import Rung
from scamp_service.model import Trial
from scamp_service.study.spec import StudySpec
from scamp_service.study.stopping import AshaOptions


@dataclass(frozen=True, slots=True)
class SuccessiveHalving:
    """Lets the best 1/``reduction_factor`` of the trials at a rung continue. The others stop there, or with ``promote``
    are paused."""

    rungs: tuple[int, ...]
    reduction_factor: int
    promote: bool = False
    unit: str = "step"  # that the study counts, or epoch

    @classmethod
    def of_options(cls, options: AshaOptions, spec: StudySpec) -> SuccessiveHalving:
        """The rule with rungs at min_steps × reduction_factor^k below the last step (``halving_rungs``)."""
        rungs = halving_rungs(spec, options.min_steps, options.reduction_factor)
        return cls(rungs, options.reduction_factor, options.promote, spec.budget.unit)

    def pauses_at(self, number: int) -> tuple[int, ...]:
        """Every rung if trials are promoted, none if they are stopped."""
        return self.rungs if self.promote else ()

    def judge(self, trial: Trial, rung: int, reported: Mapping[int, Rung], *, is_last: bool) -> Verdict:
        """Stop or pause the trial unless it is among the best at the step ``rung``.

        Of n values the best ⌈n / reduction_factor⌉ continue, and so does any value equal to the last of these. No trial
        stops until ``reduction_factor`` trials have reported. With fewer, the best 1/reduction_factor would be less
        than one trial; stopping the second trial merely because it is behind the first (as Optuna and Ray do) would let
        the order of arrival decide. Paused trials wait until they are among the best ⌊n / reduction_factor⌋, as a
        promotion is final too; the last ones are judged as if they could stop. A trial whose value is not finite stops
        at once.
        """
        peers, step = reported[rung], trial.step
        if not peers.is_finite(trial.number):
            return broken_value(peers[trial.number], step, rung, self.unit)
        be, then = was_at(step, rung, self.unit)
        num_peers, rank = len(peers), 1 + peers.num_better(trial.number)
        waits = self.promote and not is_last
        num_keep = num_peers // self.reduction_factor if waits else math.ceil(num_peers / self.reduction_factor)
        stands = f"{peers.shown(trial.number)} {be} number {rank} of {num_peers}{then}"
        if num_peers < self.reduction_factor and not self.promote:
            few = f"no trial stops until {self.reduction_factor} have reported"
            return Continue(f"continues after {self.unit} {step}: {stands}; {few}")
        if not num_keep:
            return Pause(
                f"paused at {self.unit} {step}: {stands}; none continues until {self.reduction_factor} have reported"
            )
        standing = f"the best {num_keep} continue" if num_keep > 1 else "only the best one continues"
        if rank <= num_keep:
            return Continue(f"continues after {self.unit} {step}: {stands}, and {standing}")
        if waits:
            return Pause(f"paused at {self.unit} {step}: {stands}, and {standing} so far")
        return Stop(f"stopped at {self.unit} {step}: {stands}, and {standing}")


def halving_rungs(spec: StudySpec, min_steps: int | None, reduction_factor: int) -> tuple[int, ...]:
    """Steps ``min_steps`` × ``reduction_factor``^k below the last step, rounded up to a report.

    Without ``min_steps`` the first is the first report.
    """
    every, rung, steps = spec.report_every, min_steps or spec.report_every, []
    while (reported := math.ceil(rung / every) * every) < spec.budget.length:
        steps.append(reported)
        rung *= reduction_factor
    return tuple(dict.fromkeys(steps))
