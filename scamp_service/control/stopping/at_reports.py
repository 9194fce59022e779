"""The rules that judge a trial at each of its reports: against the others, against itself, and against bounds."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from scamp_service.control.stopping.rule import Complete, Continue, Stop, Verdict, broken_value, was_at
from scamp_service.control.stopping.rung import Rung
from scamp_service.model import Trial
from scamp_service.study.objective import Objective
from scamp_service.study.objectives import Objectives
from scamp_service.study.spec import StudySpec
from scamp_service.study.stopping import MedianOptions, PatienceOptions, PercentileOptions, ThresholdOptions


def reports(spec: StudySpec, min_steps: int | None) -> tuple[int, ...]:
    """Steps of the reports from ``min_steps`` on, without the last one."""
    every = spec.report_every
    first = max(every, math.ceil((min_steps or 0) / every) * every)
    return tuple(range(first, spec.budget.length, every))


@dataclass(frozen=True, slots=True)
class _AtReports:
    """A rule that never pauses a trial."""

    rungs: tuple[int, ...]
    objectives: Objectives
    unit: str  # that the study counts: step or epoch

    def pauses_at(self, number: int) -> tuple[int, ...]:
        """Returns no steps: trials are judged while they train."""
        return ()

    def _own_values(self, trial: Trial, rung: int, reported: Mapping[int, Rung]) -> Iterator[tuple[int, float]]:
        """(step, value) of the finite values that the trial has reported at the rungs up to ``rung``."""
        for step in self.rungs[: bisect_right(self.rungs, rung)]:
            peers = reported.get(step, ())
            if trial.number in peers and math.isfinite(value := peers[trial.number][0]):
                yield step, value

    @property
    def _objective(self) -> Objective:
        return self.objectives.items[0]


@dataclass(frozen=True, slots=True)
class Percentile(_AtReports):
    """The percentile rule of Optuna and, with 50, the median rule of Golovin et al. 2017 (Google Vizier).

    The trial's best value so far is compared with what the others have reported at this step. Of several objectives no
    value is the best: then it is what the trial has reported at this step, by rank.
    """

    percentile: float
    min_trials: int

    @classmethod
    def of_options(cls, options: PercentileOptions | MedianOptions, spec: StudySpec) -> Percentile:
        """The rule of a study."""
        percentile = options.percentile if isinstance(options, PercentileOptions) else 50.0
        return cls(
            reports(spec, options.min_steps),
            spec.every_objective,
            spec.budget.unit,
            float(percentile),
            options.min_trials,
        )

    def judge(self, trial: Trial, rung: int, reported: Mapping[int, Rung], *, is_last: bool) -> Verdict:
        """Stop the trial if its best value so far is worse than this percentile of the others."""
        peers, step = reported[rung], trial.step
        if not peers.is_finite(trial.number):
            return broken_value(peers[trial.number], step, rung, self.unit)
        others = len(peers) - 1
        few = f"{others} of at least {self.min_trials} other trials have reported at {self.unit} {rung}"
        if others < max(1, self.min_trials):
            return Continue(f"continues after {self.unit} {step}: {few}")
        if self.objectives.has_several:
            return self._by_rank(trial, rung, peers)
        bar = peers.percentile_of_others(trial.number, self.percentile)
        if bar is None:
            return Continue(f"continues after {self.unit} {step}: {few}")
        best = min((value for _, value in self._own_values(trial, rung, reported)), key=self._objective.key)
        bar_name = "median" if self.percentile == 50 else f"best {self.percentile:g} %"
        ends = "is" if self.percentile == 50 else "ends at"
        own_best = f"its best value up to {self.unit} {rung} is {best:.4g}"
        stands = f"{own_best}, and the {bar_name} of {others} others {ends} {bar:.4g}"
        if self._objective.is_better(bar, than=best):
            return Stop(f"stopped at {self.unit} {step}: {stands}")
        return Continue(f"continues after {self.unit} {step}: {stands}")

    def _by_rank(self, trial: Trial, rung: int, peers: Rung) -> Verdict:
        """Stop the trial if more than this percentile of the others are better."""
        others, better, step = len(peers) - 1, peers.num_better(trial.number), trial.step
        be, then = was_at(step, rung, self.unit)
        stands = f"{peers.shown(trial.number)} {be} number {better + 1} of {others + 1}{then}"
        share = "the better half" if self.percentile == 50 else f"the best {self.percentile:g} %"
        if 100 * better > self.percentile * others:
            return Stop(f"stopped at {self.unit} {step}: {stands}, and {share} continue")
        return Continue(f"continues after {self.unit} {step}: {stands}, and {share} continue")


@dataclass(frozen=True, slots=True)
class Patience(_AtReports):
    """Completes a trial that no longer improves (Prechelt 1998, "Early stopping - but when?")."""

    patience: int
    min_delta: float

    @classmethod
    def of_options(cls, options: PatienceOptions, spec: StudySpec) -> Patience:
        """The rule of a study."""
        return cls(
            reports(spec, options.min_steps),
            spec.every_objective,
            spec.budget.unit,
            options.reports,
            float(options.min_delta),
        )

    def judge(self, trial: Trial, rung: int, reported: Mapping[int, Rung], *, is_last: bool) -> Verdict:
        """Complete the trial if as many reports as ``patience`` have passed without an improvement."""
        if not reported[rung].is_finite(trial.number):
            return broken_value(reported[rung][trial.number], trial.step, rung, self.unit)
        best_key, at, since = math.inf, 0, 0
        for step, value in self._own_values(trial, rung, reported):
            since += 1
            if (key := self._objective.key(value)) < best_key - self.min_delta:
                best_key, at, since = key, step, 0
        best = self._objective.key(best_key)  # its own inverse
        stands = f"its best value is {best:.4g} of {self.unit} {at}, {since} reports before {self.unit} {rung}"
        if since >= self.patience:
            return Complete(f"complete at {self.unit} {trial.step}, as it no longer improves: {stands}")
        return Continue(f"continues after {self.unit} {trial.step}: {stands}")


@dataclass(frozen=True, slots=True)
class Threshold(_AtReports):
    """Ends a trial whose value leaves the range that it should stay in."""

    lower: float
    upper: float

    @classmethod
    def of_options(cls, options: ThresholdOptions, spec: StudySpec) -> Threshold:
        """The rule of a study."""
        lower = -math.inf if options.lower is None else float(options.lower)
        upper = math.inf if options.upper is None else float(options.upper)
        return cls(reports(spec, options.min_steps), spec.every_objective, spec.budget.unit, lower, upper)

    def judge(self, trial: Trial, rung: int, reported: Mapping[int, Rung], *, is_last: bool) -> Verdict:
        """Stop the trial if its value at ``rung`` is out of bounds, or not finite."""
        (value,), step = reported[rung][trial.number], trial.step
        if not math.isfinite(value):
            return broken_value([value], step, rung, self.unit)
        be, then = was_at(step, rung, self.unit)
        if not self.lower <= value <= self.upper:
            bound = f"below {self.lower:g}" if value < self.lower else f"above {self.upper:g}"
            return Stop(f"stopped at {self.unit} {step}: {value:.4g} {be} {bound}{then}")
        return Continue(f"continues after {self.unit} {step}: {value:.4g} {be} within its bounds{then}")
