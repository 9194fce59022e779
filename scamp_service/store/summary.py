"""A study in a few numbers: what ``scamp run --json`` prints, the API shows and the benchmarks compare.

Pure, but for ``study_summary``, ``learned_of`` and ``device_fill``, which read the database.
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
    """The leading trial: the best completed one, or else the best that still runs."""

    trial: int
    value: float
    params: Json
    plan: str


@dataclass(frozen=True, slots=True)
class Summary:
    """``state_text``: the state in words; ``no_success``: the study has completed, but none of its trials has.
    ``degrees``: ranks of a gang → trials that ran so. ``colocated``: most gangs at once on one device. ``healed``:
    trials that completed or were pruned after an out-of-memory. ``spared``: trials that got the memory which earlier
    trials of their family had needed beyond their trace, and did not run out of it. Seconds are wall clock.

    ``prediction_error_pct``: (predicted − measured) / measured peak of tensors of one rank, by absolute value, of the
    last attempt of each trial whose measurement is exact. After an out-of-memory there is a lower bound only, which is
    no measured error: ``out_of_memory`` tells how many ``attempts`` ended so, and by how much more than was predicted
    the worst of them needed at least (``least_excess_pct``). ``learned``: what its families will be predicted with.

    ``best_metrics``: the last evaluation of the best trial, None where it is not a finite number (JSON has no other
    word for it).
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
    out_of_memory: Mapping[str, float | None]
    device_seconds: float
    wall_seconds: float
    best_metrics: Mapping[str, float | None] = field(default_factory=dict)
    learned: Sequence[Json] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def summarize(study: Study, trials: Sequence[Trial], attempts: Iterable[Attempt], *, now: float) -> Summary:
    attempts = list(attempts)
    errors = prediction_errors_pct({one.trial_id: one for one in attempts if is_exact(one)}.values())
    excesses = [least_excess_pct(one) for one in attempts if one.outcome is Outcome.OUT_OF_MEMORY]
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
        prediction_error_pct={
            "median": median(map(abs, errors)) if errors else None,
            "max": max(map(abs, errors)) if errors else None,
        },
        out_of_memory={"attempts": len(excesses), "least_excess_pct": max(excesses, default=None)},
        device_seconds=sum(len(a.devices) * ((a.ended_at or now) - a.created_at) for a in attempts),
        wall_seconds=(study.finished_at or now) - study.created_at,
    )


def study_summary(store: Reads, study_id: int, *, now: float) -> Summary:
    trials = all_trials(store, study_id)
    summary = summarize(store.study(study_id), trials, store.study_attempts(study_id), now=now)
    summary = replace(summary, learned=[lesson_json(*item) for item in learned_of(store, study_id).items()])
    if summary.best is None:
        return summary
    best = next(trial for trial in trials if trial.number == summary.best.trial)
    evaluations = store.metrics(best.id, after=best.step - 1)
    last = evaluations[-1].values if evaluations else {}
    return replace(
        summary, best_metrics={name: value if math.isfinite(value) else None for name, value in last.items()}
    )


def learned_of(store: Reads, study_id: int) -> dict[str, Learned]:
    """Family → what its next candidate is predicted with, on the kinds of device that it has run on."""
    found = {}
    for family in store.families(study_id):
        past = store.family_runs(family, WINDOW_TRIALS)
        found[family] = learn(past, {kind for run in past for kind in run.device_kinds})
    return found


def lesson_json(family: str, learned: Learned) -> Json:
    return {"family": family, **asdict(learned)}


def all_trials(store: Reads, study_id: int) -> list[Trial]:
    trials: list[Trial] = []
    while page := store.trials(study_id, after=trials[-1].id if trials else 0):
        trials += page
    return trials


def device_fill(store: Reads) -> dict[str, Any]:
    """The cluster as last recorded, each device with the gangs that hold it."""
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
    """Whether its measured peak is one, and not what was held when it failed."""
    return attempt.measured_bytes > 0 and attempt.outcome is not Outcome.OUT_OF_MEMORY


def least_excess_pct(failed: Attempt) -> float:
    """By how much more than the predicted tensors an out-of-memory shows at least to be needed."""
    expected_bytes = failed.prediction.expected_bytes
    return 100.0 * (failed.least_bytes - expected_bytes) / expected_bytes


class Predicted(Protocol):
    """A ``Trial`` or an ``Attempt``."""

    @property
    def prediction(self) -> Prediction: ...
    @property
    def measured_bytes(self) -> int: ...


def prediction_errors_pct(measured: Iterable[Predicted]) -> list[float]:
    """Signed error of each prediction that was measured: see ``Prediction.error_pct``."""
    return [
        one.prediction.error_pct(one.measured_bytes)
        for one in measured
        if one.measured_bytes and one.prediction.predicted_bytes
    ]


def most_at_once(attempts: Iterable[Attempt], now: float) -> int:
    """The most gangs that held one device at the same time."""
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
