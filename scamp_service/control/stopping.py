"""Decides at a rung whether a trial goes on: asynchronous successive halving (Li et al. 2020, arXiv:1810.05934).

Pure: the values that trials of one study have reported at the rung go in, a verdict with its reason comes out. A trial
is judged when it arrives and never waits for others, so no device idles; a trial that went on by luck of an early
arrival is judged again at the next rung. Pausing and promoting later are left out: what stops, stops for good.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from scamp_service.study.spec import StudySpec


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the trial must stop now, and why, in words that a user reads."""

    stop: bool
    reason: str


def judge(peers: Mapping[int, float], trial_id: int, rung: int, *, maximize: bool, reduction_factor: int) -> Verdict:
    """``peers``: trial id → objective at step ``rung`` of every trial that has reported there, ``trial_id`` included.

    Of n values the best ⌈n / reduction_factor⌉ go on, and whatever equals the last of those. Until
    ``reduction_factor`` trials have arrived nobody stops: of fewer, "the best 1/reduction_factor" is nobody, and
    stopping the second for being behind the first (as Optuna and Ray do) would make the outcome a matter of who came
    first. A value that is not finite stops at once: it is the worst there is, and training does not recover from it.
    """
    value = peers[trial_id]
    if not math.isfinite(value):
        return Verdict(True, f"step {rung}: the objective is {value}, which training does not recover from")
    num_peers, num_keep = len(peers), math.ceil(len(peers) / reduction_factor)
    rank = 1 + sum(_better(other, value, maximize) for other in peers.values())
    if num_peers < reduction_factor:
        return Verdict(
            False,
            f"step {rung}: {value:.4g}, number {rank} of {num_peers}; none stops before {reduction_factor} are here",
        )
    kept = f"the best {num_keep} go on" if num_keep > 1 else "the best one goes on"
    return Verdict(rank > num_keep, f"step {rung}: {value:.4g} is number {rank} of {num_peers}, {kept}")


def rungs(spec: StudySpec) -> tuple[int, ...]:
    """Steps at which trials are judged: min_steps × reduction_factor^k, rounded up to a report, below the last step.

    Without ``min_steps`` the first rung is the first report. Empty when the study stops no trial early.
    """
    if spec.stopping.rule == "none":
        return ()
    every, rung, steps = spec.report_every, spec.stopping.min_steps or spec.report_every, []
    while (reported := math.ceil(rung / every) * every) < spec.budget.steps:
        steps.append(reported)
        rung *= spec.stopping.reduction_factor
    return tuple(dict.fromkeys(steps))


def _better(other: float, value: float, maximize: bool) -> bool:
    return math.isfinite(other) and (other > value if maximize else other < value)
