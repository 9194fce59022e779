"""Compares stopping rules and samplers on the table of learning curves, at equal device-seconds.

Searches run in virtual time on ``NUM_WORKERS`` devices: each trial holds one, and reports as its curve in the table
says. ScaMP's side calls the code of the service: ``Search`` proposes, and the study's rule judges. Ray Tune's and
Optuna's rules are their own classes; they see the candidates that ScaMP's random sampler proposes with the same seed.
Regret is the best accuracy of the table less the best that any trial has reported by then.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter
from statistics import fmean, stdev
from typing import Any

import optuna
from ray.tune.schedulers import AsyncHyperBandScheduler

from benchmarks.searching.curve_table import REPORT_EVERY, SPACE, STEPS, Curve, curves, key_of
from scamp_service.control.decide.promote import order_to_continue
from scamp_service.control.stopping import rule_of
from scamp_service.control.stopping.rule import Continue, Pause, next_pause
from scamp_service.control.stopping.rung import Rung
from scamp_service.lifecycle import TrialState
from scamp_service.model import Trial
from scamp_service.search.proposals import Search
from scamp_service.study.parse import parse_study
from scamp_service.study.spec import StudySpec

NUM_WORKERS = 4
MARKS = (6, 12, 24)
"""Device-seconds at which regret is read: in which this many candidates of mean cost train to the end."""
FIRST_SEED = 100
"""Seeds below it were looked at while this was written."""
HALVING = {"min_steps": REPORT_EVERY, "reduction_factor": 3}

Judge = Callable[["Running", int, float], bool]
"""Whether a trial continues after it has reported this value at this step."""


def spec_of(sampler: Any, stopping: Any, seed: int) -> StudySpec:
    """A study over the table."""
    return parse_study(
        {
            "name": "table",
            "workload": "table.py:Table",
            "objective": {"metric": "accuracy"},
            "space": SPACE,
            "search": {"sampler": sampler, "seed": seed},
            "stopping": stopping,
            "budget": {"trials": 10_000, "steps": STEPS, "report_every": REPORT_EVERY},
        }
    )


@dataclass(slots=True)
class Running:
    """One trial in virtual time, as the decisions of the service see it."""

    trial: Trial
    curve: Curve

    @property
    def report_seconds(self) -> float:
        """Device-seconds from one report to the next."""
        return self.curve.step_seconds * REPORT_EVERY


@dataclass
class Table:
    """A search in virtual time."""

    spec: StudySpec
    foreign: Judge | None = None  # the rule of another library, instead of the study's
    trials: dict[int, Running] = field(default_factory=dict)
    best: float = 0.0
    spent: float = 0.0
    num_trials: int = 0

    def __post_init__(self) -> None:
        self._search, self._rule = Search(self.spec), rule_of(self.spec)
        self._rungs = {step: Rung(self.spec.every_objective) for step in self._rule.rungs}
        self._changed: dict[int, Trial] = {}

    def regrets(self, budget: float) -> Iterator[tuple[float, float]]:
        """(device-seconds, regret) after each report, until the budget is used up."""
        top = max(max(curve.accuracies) for curve in curves().values())
        agenda: list[tuple[float, int]] = []
        for _ in range(NUM_WORKERS):
            self._start(0.0, agenda)
        while agenda:
            now, number = heapq.heappop(agenda)
            self.spent = now * NUM_WORKERS
            if self.spent > budget:
                return
            running = self.trials[number]
            step = running.trial.step + REPORT_EVERY
            value = running.curve.accuracies[step // REPORT_EVERY - 1]
            self.best = max(self.best, value)
            yield self.spent, top - self.best
            if self._goes_on(running, step, value):
                heapq.heappush(agenda, (now + running.report_seconds, number))
            else:
                self._start(now, agenda)

    def _goes_on(self, running: Running, step: int, value: float) -> bool:
        number = running.trial.number
        self._move(running, step=step, value=value)
        if step in self._rungs:
            self._rungs[step].report(number, (value,))
        if step >= STEPS:
            self._move(running, state=TrialState.COMPLETED)
            return False
        if self.foreign is not None:
            goes_on = self.foreign(running, step, value)
        elif step == next_pause(self._rule, running.trial):
            self._move(running, state=TrialState.PAUSED)
            return False
        elif step in self._rungs:
            verdict = self._rule.judge(running.trial, step, self._rungs, is_last=False)
            self._move(running, judged_step=step)
            goes_on = isinstance(verdict, Continue)
        else:
            return True
        if not goes_on:
            self._move(running, state=TrialState.PRUNED)
        return goes_on

    def _start(self, now: float, agenda: list[tuple[float, int]]) -> None:
        """Give a free device to a paused trial that may continue, or else to a new candidate."""
        running = self._promoted()
        if running is None:
            changed, self._changed = self._changed, {}
            (params,) = self._search.propose(changed.values(), self.num_trials, 1)
            running = Running(trial_of(self.num_trials, params), curves()[key_of(params)])
            self.trials[self.num_trials] = running
            self.num_trials += 1
        self._move(running, state=TrialState.RUNNING)
        heapq.heappush(agenda, (now + running.report_seconds, running.trial.number))

    def _promoted(self) -> Running | None:
        """The paused trial that continues next, by the order of ``decide.promote``; None if none may."""
        ready = []
        for running in self.trials.values():
            trial = running.trial
            if trial.state is not TrialState.PAUSED:
                continue
            verdict = self._rule.judge(trial, trial.step, self._rungs, is_last=False)
            if not isinstance(verdict, Pause):
                assert trial.value is not None
                ready.append((order_to_continue(trial, trial.step, self._rungs[trial.step].key(trial.number)), running))
        if not ready:
            return None
        first = min(ready, key=itemgetter(0))[1]
        self._move(first, judged_step=first.trial.step)
        return first

    def _move(self, running: Running, **changes: Any) -> None:
        running.trial = replace(running.trial, **changes)
        self._changed[running.trial.number] = running.trial


def trial_of(number: int, params: Mapping[str, Any]) -> Trial:
    """A trial that has just begun."""
    return Trial(
        id=number, study_id=1, number=number, state=TrialState.RUNNING, attempt=1, params=params, reason="",
        structure="", sized=None, measured_bytes=0, measured_step_seconds=None, family="", num_lost=0, num_oom=0,
        passed_over=0, judged_step=0, step=0, value=None, created_at=0.0, started_at=None, finished_at=None,
    )  # fmt: skip


def tune_asha() -> Judge:
    """Ray Tune's ``AsyncHyperBandScheduler`` (ASHA) with the same rungs."""
    scheduler = AsyncHyperBandScheduler(
        time_attr="step", metric="accuracy", mode="max", max_t=STEPS, grace_period=HALVING["min_steps"],
        reduction_factor=HALVING["reduction_factor"],
    )  # fmt: skip
    tune_trials: dict[int, Any] = {}
    no_controller: Any = None

    def judge(running: Running, step: int, value: float) -> bool:
        number = running.trial.number
        if number not in tune_trials:
            tune_trials[number] = type("TuneTrial", (), {"trial_id": str(number), "is_saving": False})()
            scheduler.on_trial_add(no_controller, tune_trials[number])
        decision = scheduler.on_trial_result(no_controller, tune_trials[number], {"step": step, "accuracy": value})
        return bool(decision == scheduler.CONTINUE)

    return judge


def optuna_asha() -> Judge:
    """Optuna's ``SuccessiveHalvingPruner`` with the same rungs."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruner = optuna.pruners.SuccessiveHalvingPruner(HALVING["min_steps"], HALVING["reduction_factor"])
    study = optuna.create_study(direction="maximize", pruner=pruner)
    optuna_trials: dict[int, optuna.Trial] = {}

    def judge(running: Running, step: int, value: float) -> bool:
        number = running.trial.number
        if number not in optuna_trials:
            optuna_trials[number] = study.ask()
        optuna_trials[number].report(value, step)
        return not optuna_trials[number].should_prune()

    return judge


ASHA = {"rule": "asha", **HALVING}
EVOLUTION = {"name": "evolution", "population_size": 10, "sample_size": 5}
SEARCHES: Mapping[str, tuple[Any, Any, Callable[[], Judge] | None]] = {
    "random, no stopping": ("random", {"rule": "none"}, None),
    "random, ASHA that stops": ("random", ASHA, None),
    "random, ASHA that promotes": ("random", {**ASHA, "promote": True}, None),
    "random, Hyperband": ("random", {"rule": "hyperband", **HALVING}, None),
    "random, median": ("random", {"rule": "median"}, None),
    "random, Ray Tune's ASHA": ("random", {"rule": "none"}, tune_asha),
    "random, Optuna's ASHA": ("random", {"rule": "none"}, optuna_asha),
    "evolution, no stopping": (EVOLUTION, {"rule": "none"}, None),
    "evolution, ASHA that stops": (EVOLUTION, ASHA, None),
    "TPE, ASHA that stops": ("tpe", ASHA, None),
    "TPE, ASHA that promotes": ("tpe", {**ASHA, "promote": True}, None),
}
"""Sampler, rule, and the rule of another library in its place."""


def regrets_of(sampler: Any, stopping: Any, foreign: Callable[[], Judge] | None, seed: int) -> list[float]:
    """Regrets of one search, one for each of ``MARKS``."""
    second = STEPS * fmean(curve.step_seconds for curve in curves().values())
    left = [mark * second for mark in MARKS]
    regret, series = max(max(curve.accuracies) for curve in curves().values()), list[float]()
    search = Table(spec_of(sampler, stopping, seed), foreign() if foreign else None)
    for spent, newest in search.regrets(left[-1]):
        while left and spent > left[0]:
            series.append(regret)
            left.pop(0)
        regret = newest
    return series + [regret] * len(left)


def regrets(num_seeds: int) -> Mapping[str, Any]:
    """Regret of each search, and the ratios of mean regrets that say who is ahead."""
    print(f"\n{'regret on the table of curves, after':36}{''.join(f'{mark:>10} full trainings' for mark in MARKS)}")
    regret_curves: dict[str, list[list[float]]] = {}
    for name, search in SEARCHES.items():
        regret_curves[name] = [regrets_of(*search, seed) for seed in range(FIRST_SEED, FIRST_SEED + num_seeds)]
        columns = list(zip(*regret_curves[name], strict=True))
        print(f"{name:36}{''.join(f'{fmean(values):15.4f} ±{stdev(values):7.4f}' for values in columns)}")
    print(f"mean ± standard deviation over {num_seeds} seeds")

    def ratio(sampler: str, other: str, mark: int) -> float:
        place = MARKS.index(mark)
        mine, theirs = (fmean(row[place] for row in regret_curves[name]) for name in (sampler, other))
        return round(mine / theirs, 3) if theirs else 1.0 + (mine > 0)

    return {
        "asha_promote_vs_tune": ratio("random, ASHA that promotes", "random, Ray Tune's ASHA", 12),
        "asha_promote_vs_optuna": ratio("random, ASHA that promotes", "random, Optuna's ASHA", 12),
        "asha_stop_vs_tune": ratio("random, ASHA that stops", "random, Ray Tune's ASHA", 12),
        "hyperband_vs_tune": ratio("random, Hyperband", "random, Ray Tune's ASHA", 12),
        "evolution_vs_random": ratio("evolution, no stopping", "random, no stopping", 24),
        "regret_seeds": num_seeds,
    }
