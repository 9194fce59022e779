"""Decides at a rung whether a trial continues: asynchronous successive halving (Li et al. 2020, arXiv:1810.05934).

Pure: it takes the values that trials of one study have reported at the rung, and returns a verdict with its reason. A
trial is judged when it reaches the rung and never waits for others, so no device idles. A trial that continued only
because it was early is judged again at the next rung. Trials are not paused and promoted later: a stop is final.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass

from scamp_service.study.spec import StudySpec


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the trial must stop now, and the reason that a user reads."""

    stop: bool
    reason: str


class Rung:
    """The objectives that trials have reported at one step, by trial id, and in order."""

    def __init__(self, values: Mapping[int, float] | None = None) -> None:
        self._values: dict[int, float] = {}
        self._finite: list[float] = []
        for trial_id, value in (values or {}).items():
            self.report(trial_id, value)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, trial_id: int) -> bool:
        return trial_id in self._values

    def __getitem__(self, trial_id: int) -> float:
        return self._values[trial_id]

    def report(self, trial_id: int, value: float) -> None:
        """Enter what a trial has reported; it replaces what the trial reported in an earlier attempt."""
        if (before := self._values.get(trial_id)) is not None and math.isfinite(before):
            del self._finite[bisect_left(self._finite, before)]
        self._values[trial_id] = value
        if math.isfinite(value):
            insort(self._finite, value)

    def num_better(self, value: float, *, maximize: bool) -> int:
        """The number of trials with a better objective. What is not finite is better than nothing."""
        if maximize:
            return len(self._finite) - bisect_right(self._finite, value)
        return bisect_left(self._finite, value)


def judge(peers: Rung, trial_id: int, rung: int, step: int, *, maximize: bool, reduction_factor: int) -> Verdict:
    """Judge the trial ``trial_id`` at the step ``rung``. ``step`` is the last one that it has reported.

    ``peers`` has the objective of every trial that has reported at this step, including this one.
    Of n values the best ⌈n / reduction_factor⌉ continue, and so does any value equal to the last of these. No trial
    stops until ``reduction_factor`` trials have reported. With fewer, the best 1/reduction_factor would be less than
    one trial; stopping the second trial merely because it is behind the first (as Optuna and Ray do) would let the
    order of arrival decide. A trial whose value is not finite stops at once, because it cannot be compared.
    """
    value = peers[trial_id]
    be, then = ("is", "") if step == rung else ("was", f" at step {rung}")
    if not math.isfinite(value):
        advice = "if evaluate cannot compute it so early, raise stopping.min_steps"
        return Verdict(
            True, f"stopped at step {step}: the objective {be} {value}{then}, which compares with no other; {advice}"
        )
    num_peers, num_keep = len(peers), math.ceil(len(peers) / reduction_factor)
    rank = 1 + peers.num_better(value, maximize=maximize)
    if num_peers < reduction_factor:
        few = f"no trial stops until {reduction_factor} have reported"
        return Verdict(
            False, f"continues after step {step}: {value:.4g} {be} number {rank} of {num_peers}{then}; {few}"
        )
    kept = f"the best {num_keep} continue" if num_keep > 1 else "only the best one continues"
    place = f"{value:.4g} {be} number {rank} of {num_peers}{then}, and {kept}"
    if rank > num_keep:
        return Verdict(True, f"stopped at step {step}: {place}")
    return Verdict(False, f"continues after step {step}: {place}")


def rungs(spec: StudySpec) -> tuple[int, ...]:
    """Steps at which trials are judged: min_steps × reduction_factor^k below the last step, rounded up to a report.

    Without ``min_steps`` the first rung is the first report. Empty when the study has early stopping turned off.
    """
    if spec.stopping.rule == "none":
        return ()
    every, rung, steps = spec.report_every, spec.stopping.min_steps or spec.report_every, []
    while (reported := math.ceil(rung / every) * every) < spec.budget.steps:
        steps.append(reported)
        rung *= spec.stopping.reduction_factor
    return tuple(dict.fromkeys(steps))
