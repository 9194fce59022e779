"""Summarizes a study in a few numbers, which ``scamp run --json`` prints, the API shows and the benchmarks compare.

Only ``study_summary``, ``learned_of``, ``all_trials`` and ``device_fill`` read the database; the rest is pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any, Protocol

from estimators.learning import WINDOW_TRIALS, Learned, learn
from estimators.model import Prediction
from scamp_service.lifecycle import Outcome, TrialState, has_no_success, state_text
from scamp_service.model import Attempt, Json, Study, Trial
from scamp_service.store.reads import Reads


@dataclass(frozen=True, slots=True)
class Best:
    """The leading trial: the best completed one, or else the best that still runs. ``plan`` is its plan in words."""

    trial: int
    value: float
    params: Json
    plan: str


@dataclass(frozen=True, slots=True)
class Summary:
    """A study in numbers.

    - ``state_text``: the state in words. ``no_success``: the study has completed without a completed trial.
    - ``trials``: number of trials by state. ``degrees``: number of trials by the ranks of their last gang.
    - ``colocated``: the most gangs at once on one device. ``healed``: trials that ran out of memory and still completed
      or were pruned.
    - ``spared``: trials that began with the extra memory learned from their family, and did not run out of memory.
    - ``prediction_error_pct``: median and maximum of |predicted − measured| / measured, in percent, for the peak of
      tensors of one rank. It covers the last attempt of each trial with an exact measurement.
    - ``step_error_pct``: the same for the seconds of a step, over the last attempt of each trial with a timed step.
    - ``out_of_memory``: ``attempts`` counts the attempts that ran out of memory. They give only a lower bound, so they
      are not in the prediction error. ``least_excess_pct`` is how far the worst exceeded its prediction, at least.
    - ``device_seconds``: seconds × devices held. ``wall_seconds``: from creation to the end, or until now.
    - ``best_metrics``: the last evaluation of the best trial; None for NaN and infinity, which JSON does not have.
    - ``learned``: the memory correction for each family of the study and each layout that it has run with.
    """

    study: int
    name: str
    state: str
    state_text: str
    no_success: bool
    trials: Mapping[str, int]
    best: Best | None
    degrees: Mapping[str, int]
    colocated: int
    healed: int
    spared: int
    prediction_error_pct: Mapping[str, float | None]
    step_error_pct: Mapping[str, float | None]
    out_of_memory: Mapping[str, float | None]
    device_seconds: float
    wall_seconds: float
    best_metrics: Mapping[str, float | None] = field(default_factory=dict)
    learned: Sequence[Json] = ()

    def to_json(self) -> dict[str, Any]:
        """The fields as a dictionary of JSON values."""
        return asdict(self)


def summarize(study: Study, trials: Sequence[Trial], attempts: Iterable[Attempt], *, now: float) -> Summary:
    """The summary of a study, without ``best_metrics`` and ``learned``, which need the database."""
    attempts = list(attempts)
    errors = prediction_errors_pct({attempt.trial_id: attempt for attempt in attempts if is_exact(attempt)}.values())
    slips = {attempt.trial_id: slip for attempt in attempts if (slip := step_error_pct(attempt)) is not None}
    excesses = [least_excess_pct(attempt) for attempt in attempts if attempt.outcome is Outcome.OUT_OF_MEMORY]
    counts = {state: sum(trial.state is state for trial in trials) for state in TrialState}
    ran = {attempt.trial_id: attempt.plan.world_size for attempt in attempts}
    return Summary(
        study=study.id,
        name=study.name,
        state=study.state.value,
        state_text=state_text(study.state, counts),
        no_success=has_no_success(study.state, counts),
        trials={state.value: count for state, count in counts.items() if count},
        best=_best(study, trials),
        degrees={str(degree): list(ran.values()).count(degree) for degree in sorted(set(ran.values()))},
        colocated=most_at_once(attempts, now),
        healed=sum(trial.is_healed for trial in trials),
        spared=sum(trial.is_spared for trial in trials),
        prediction_error_pct=_median_and_max(errors),
        step_error_pct=_median_and_max(slips.values()),
        out_of_memory={"attempts": len(excesses), "least_excess_pct": max(excesses, default=None)},
        device_seconds=sum(len(a.devices) * ((a.ended_at or now) - a.created_at) for a in attempts),
        wall_seconds=(study.finished_at or now) - study.created_at,
    )


def study_summary(store: Reads, study_id: int, *, now: float) -> Summary:
    """The complete summary of a stored study. Raises ``NotFound``."""
    trials = all_trials(store, study_id)
    summary = summarize(store.study(study_id), trials, store.study_attempts(study_id), now=now)
    summary = replace(summary, learned=[learned_json(*item) for item in learned_of(store, study_id)])
    if summary.best is None:
        return summary
    best = next(trial for trial in trials if trial.number == summary.best.trial)
    evaluations = store.metrics(best.id, after=best.step - 1)
    last = evaluations[-1].values if evaluations else {}
    return replace(
        summary, best_metrics={name: value if math.isfinite(value) else None for name, value in last.items()}
    )


def learned_of(store: Reads, study_id: int) -> list[tuple[str, Learned]]:
    """The memory corrections of each family of the study, for the device kinds that the family has run on."""
    found = []
    for family in store.families(study_id):
        past = store.family_runs(family, WINDOW_TRIALS)
        learned = learn(past, {kind for run in past for kind in run.device_kinds})
        found += [(family, correction) for correction in learned.values()]
    return found


def learned_json(family: str, learned: Learned) -> Json:
    """The memory correction of one family under one layout as JSON."""
    return {"family": family, **asdict(learned), "layout": str(learned.layout)}


def all_trials(store: Reads, study_id: int) -> list[Trial]:
    """All trials of a study by number, read page by page."""
    trials: list[Trial] = []
    while page := store.trials(study_id, after=trials[-1].id if trials else 0):
        trials += page
    return trials


def device_fill(store: Reads) -> dict[str, Any]:
    """The last recorded state of the cluster, where each device lists the gangs that hold it."""
    recorded = store.cluster()
    cluster: dict[str, Any] = dict(recorded[0]) if recorded else {"status": "starting", "detail": "", "devices": []}
    numbers = {trial.id: trial.number for trial in store.live_trials()}
    gangs = [(attempt, {"number": numbers.get(attempt.trial_id, "?"), "mib_per_rank": attempt.mib_per_rank})
             for attempt in store.open_attempts()]  # fmt: skip
    cluster["devices"] = [
        {**device, "gangs": [gang for attempt, gang in gangs if device["id"] in attempt.devices]}
        for device in cluster["devices"]
    ]
    return cluster


def is_exact(attempt: Attempt) -> bool:
    """Whether the attempt measured its peak, and not just what it held when it ran out of memory."""
    return attempt.measured_bytes > 0 and attempt.outcome is not Outcome.OUT_OF_MEMORY


def least_excess_pct(failed: Attempt) -> float:
    """Lower bound, in percent, on how far the need of an attempt that ran out of memory was above its prediction."""
    expected_bytes = failed.prediction.expected_bytes
    return 100.0 * (failed.least_bytes - expected_bytes) / expected_bytes


class Predicted(Protocol):
    """The prediction and the measured peak of a ``Trial`` or an ``Attempt``."""

    @property
    def prediction(self) -> Prediction: ...
    @property
    def measured_bytes(self) -> int: ...


def prediction_errors_pct(measured: Iterable[Predicted]) -> list[float]:
    """Signed error in percent of each prediction that has a measured peak: see ``Prediction.error_pct``."""
    return [
        item.prediction.error_pct(item.measured_bytes)
        for item in measured
        if item.measured_bytes and item.prediction.predicted_bytes
    ]


def step_error_pct(attempt: Attempt) -> float | None:
    """Signed error in percent of the predicted seconds of a step; None unless they were predicted and measured."""
    predicted, measured = attempt.predicted_step_seconds, attempt.measured_step_seconds
    return 100.0 * (predicted - measured) / measured if predicted and measured else None


def most_at_once(attempts: Iterable[Attempt], now: float) -> int:
    """The largest number of gangs that held one device at the same time."""
    changes: dict[str, list[tuple[float, int]]] = {}
    for attempt in attempts:
        for device in attempt.devices:
            changes.setdefault(device, []).extend([(attempt.created_at, 1), (attempt.ended_at or now, -1)])
    most = 0
    for steps in changes.values():
        gangs = 0
        for _, change in sorted(steps):
            gangs += change
            most = max(most, gangs)
    return most


def _median_and_max(errors: Iterable[float]) -> dict[str, float | None]:
    sizes = [abs(error) for error in errors]
    return {"median": median(sizes) if sizes else None, "max": max(sizes, default=None)}


def _best(study: Study, trials: Iterable[Trial]) -> Best | None:
    sign = 1.0 if study.spec["objective"]["direction"] == "maximize" else -1.0
    valued = [trial for trial in trials if trial.value is not None and trial.value == trial.value]
    completed = [trial for trial in valued if trial.state is TrialState.COMPLETED]
    running = [trial for trial in valued if trial.state is TrialState.RUNNING]
    ranked = sorted(completed or running, key=lambda trial: (-sign * (trial.value or 0.0), trial.number))
    if not ranked:
        return None
    trial = ranked[0]
    return Best(trial.number, trial.value or 0.0, trial.params, str(trial.plan or ""))
