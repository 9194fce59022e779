"""Summarizes a study in a few numbers, which ``scamp run --json`` prints, the API shows and the benchmarks compare.

It reads the numbers that the store keeps (``tallies``), not the trials. The API answers with these classes, and
describes their fields by the words below each. All but ``summarize`` read the database.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from estimators.learning import WINDOW_TRIALS, Learned, learn
from scamp_service.lifecycle import StudyState, TrialState, has_no_success, seen_state, state_text
from scamp_service.model import Json, Study, Trial
from scamp_service.store.recorded_cluster import STARTING
from scamp_service.store.store import Store
from scamp_service.store.tallies import (
    COLOCATED,
    HEALED,
    SPARED,
    UNEVEN,
    Counted,
    ErrorSummary,
    Held,
)
from scamp_service.study.objectives import Objectives

FRONT_IN_SUMMARY = 100
FAMILIES_IN_SUMMARY = 20
"""A summary says what was learned of this many families, the largest ones: a study may have thousands."""


@dataclass(frozen=True, slots=True)
class Best:
    """The best completed trial; while there is none, the best running trial."""

    trial: int
    """number of the trial in the study"""
    value: float | None
    """its objective"""
    params: Json
    plan: str
    """the plan in words"""

    @classmethod
    def of(cls, trial: Trial) -> Best:
        """How a summary names this trial."""
        return cls(trial.number, trial.value, trial.params, str(trial.plan or ""))


@dataclass(frozen=True, slots=True)
class FrontTrial:
    """A trial on the Pareto front of a study with several objectives."""

    trial: int
    """number of the trial in the study"""
    values: Sequence[float]
    """value of each objective, in the order of `spec.objectives`"""
    params: Json
    plan: str
    """the plan in words"""


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """Attempts that ran out of memory, whose true peak is unknown; they are not in the prediction error."""

    attempts: int
    """number of attempts that ran out of memory"""
    least_excess_pct: float | None
    """the worst attempt needed at least this many percent more than predicted"""


@dataclass(frozen=True, slots=True)
class LearnedMemory:
    """Memory correction learned from the newest trials of a family that ran with one layout: bytes that are added to
    the prediction of its next candidate with this layout, beyond its trace and the constant margin. A family is a
    workload with its code and all parameters except the numbers that a study searches."""

    family: str
    layout: str
    """how the model was spread over ranks, such as fsdp2+recompute"""
    extra_bytes: int
    """bytes reserved beyond trace and margin"""
    bias_bytes: int
    """part of extra_bytes: tensors that the trace misses, by the median"""
    num_trials: int
    """trials that the correction was learned from"""
    num_out_of_memory: int
    """number of them that ran out of memory"""
    num_halvings: int
    """how often finished trials have halved what failures ask for"""
    studies: Sequence[int]
    """studies whose trials needed more than their trace"""


@dataclass(frozen=True, slots=True)
class Summary:
    """The study in a few numbers, as `scamp run --json` prints them."""

    study: int
    name: str
    state: StudyState
    state_text: str
    """the state in words"""
    no_success: bool
    """the study has completed, but none of its trials did"""
    trials: Mapping[TrialState, int]
    """number of trials in each state that has any"""
    best: Best | None
    """null with several objectives, see `front`"""
    degrees: Mapping[str, int]
    """number of trials by the number of ranks they ran on"""
    colocated: int
    """largest number of gangs of the study on one device at once"""
    healed: int
    """trials that completed or were pruned after running out of memory"""
    spared: int
    """trials that ran with memory learned from earlier trials and did not run out of memory"""
    is_uneven: bool
    """whether samples differ in size, so that peaks are predicted for the largest of them"""
    prediction_error_pct: Mapping[str, float | None]
    """`median` and `max` of |predicted − measured| / measured for the peak of tensors of one rank, over the last
    attempt of each trial that was measured exactly; null if samples differ in size"""
    step_error_pct: Mapping[str, float | None]
    """the same for predicted seconds of a step, over the last timed attempt of each trial"""
    out_of_memory: OutOfMemory
    device_seconds: float
    """seconds × devices that its attempts have held so far"""
    communication_seconds: float
    """those in which ranks waited for messages, by the measured share of a step"""
    busy_share: float | None
    """how busy the devices were, from 0 to 1, as far as that was measured: in each whole minute of an attempt"""
    reserved_mib_seconds: float
    """seconds × MiB that its attempts have had reserved so far"""
    used_mib_seconds: float
    """seconds × MiB that their ranks had at the measured peak, 0 for attempts that have not measured it yet"""
    wall_seconds: float
    """from its creation to its end, or until now"""
    front: Sequence[FrontTrial]
    """completed trials on the Pareto front (while none has completed, of those that run), the best of the first
    objective first; at most 100, evenly chosen. Empty with one objective"""
    regret_bound: float | None
    """with `budget.terminator`, how much better than the best found any candidate may be, with high probability; null
    while it is not known"""
    best_metrics: Mapping[str, float | None]
    """metrics of the best trial's last evaluation, or of its best where that counts; null: not finite"""
    learned: Sequence[LearnedMemory]
    """memory corrections of the largest families of the study, for each layout that it has run with"""

    def to_json(self) -> dict[str, Any]:
        """The fields as a dictionary of JSON values."""
        return asdict(self)


def study_summary(store: Store, study_id: int, *, now: float) -> Summary:
    """The summary of a stored study. Raises ``NotFound``."""
    study, counted = store.studies.get(study_id), store.counts.counted(study_id)
    objectives = Objectives.of_spec(study.spec)
    best = store.trials.leading(study_id, objectives)
    return replace(
        summarize(study, counted, best, store.counts.held(study_id, now=now), now=now),
        front=front_of(store, study_id, objectives),
        best_metrics=_metrics_of(store, best, study.spec["objective"]["metric"]) if best else {},
        learned=learned_of(store, counted.families[:FAMILIES_IN_SUMMARY]),
    )


def summarize(study: Study, counted: Counted, best: Trial | None, held: Held, *, now: float) -> Summary:
    """The summary of a study, without ``best_metrics``, ``front`` and ``learned``, which need the database."""
    state = seen_state(study.state, study.spec)
    tallies, is_uneven = counted.tallies, counted.tallies.get(UNEVEN, 0) > 0
    return Summary(
        study=study.id,
        name=study.name,
        state=state,
        state_text=state_text(state, counted.states),
        no_success=has_no_success(state, counted.states),
        trials=dict(counted.states),
        best=Best.of(best) if best else None,
        degrees=counted.degrees,
        colocated=int(tallies.get(COLOCATED, 0)),
        healed=int(tallies.get(HEALED, 0)),
        spared=int(tallies.get(SPARED, 0)),
        is_uneven=is_uneven,
        prediction_error_pct=asdict(ErrorSummary() if is_uneven else counted.peak_error_pct),
        step_error_pct=asdict(counted.step_error_pct),
        out_of_memory=OutOfMemory(counted.num_oom, counted.least_excess_pct),
        device_seconds=held.device_seconds,
        communication_seconds=held.communication_seconds,
        busy_share=held.busy_seconds / held.watched_seconds if held.watched_seconds else None,
        reserved_mib_seconds=held.mib_seconds,
        used_mib_seconds=held.used_mib_seconds,
        wall_seconds=(study.finished_at or now) - study.created_at,
        front=(),
        regret_bound=study.regret_bound,
        best_metrics={},
        learned=(),
    )


def _metrics_of(store: Store, trial: Trial, metric: str) -> dict[str, float | None]:
    """Metrics of a trial's last evaluation, or of its best where that counts; ``metric`` is its value."""
    step, limit = (trial.step, 10_000) if trial.best_step is None else (trial.best_step, 1)
    evaluations = store.reports.metrics(trial.id, after=step - 1, limit=limit)
    last = dict(evaluations[-1].values) if evaluations else {}
    if trial.value is not None:  # other programs' values need not be among their reports
        last[metric] = trial.value
    return {name: value if math.isfinite(value) else None for name, value in last.items()}


def front_of(store: Store, study_id: int, objectives: Objectives) -> list[FrontTrial]:
    """The Pareto front of a study, the best of the first objective first; empty with one objective."""
    scores = store.trials.scores(study_id) if objectives.has_several else []
    points = {score.number: values for score in objectives.front_of(scores) if (values := objectives.values_of(score))}
    order = sorted(points, key=lambda number: (objectives.keys(points[number]), number))
    num = min(len(order), FRONT_IN_SUMMARY)
    chosen = [order[index * (len(order) - 1) // max(1, num - 1)] for index in range(num)]
    trials = {trial.number: trial for trial in store.trials.with_numbers(study_id, chosen)}
    return [
        FrontTrial(number, points[number], trials[number].params, str(trials[number].plan or "")) for number in chosen
    ]


def learned_of(store: Store, families: Iterable[str]) -> list[LearnedMemory]:
    """The memory corrections of each of these families, for the device kinds that the family has run on."""
    rows = []
    for family in families:
        past = store.attempts.family_runs(family, WINDOW_TRIALS)
        learned = learn(past, {kind for run in past for kind in run.device_kinds})
        rows += [_learned_memory(family, correction) for correction in learned.values()]
    return rows


def _learned_memory(family: str, learned: Learned) -> LearnedMemory:
    return LearnedMemory(
        family,
        str(learned.layout),
        learned.extra_bytes,
        learned.bias_bytes,
        learned.num_trials,
        learned.num_out_of_memory,
        learned.num_halvings,
        learned.studies,
    )


def device_fill(store: Store) -> dict[str, Any]:
    """The last recorded state of the cluster, where each device lists the gangs that hold it."""
    recorded = store.cluster.recorded()
    cluster = dict((recorded[0] if recorded else STARTING).to_json())
    trials = {trial.id: trial for trial in store.trials.live()}
    attempts = store.attempts.open()

    def gangs_on(device: str) -> list[Json]:
        here = [attempt for attempt in attempts if device in attempt.devices]
        # A gang may still be stopping after its trial has ended.
        holders = [trials.get(attempt.trial_id) or store.trials.get(attempt.trial_id) for attempt in here]
        return [
            {"study_id": trial.study_id, "number": trial.number, "mib_per_rank": attempt.mib_on(device)}
            for attempt, trial in zip(here, holders, strict=True)
        ]

    cluster["devices"] = [{**device, "gangs": gangs_on(device["id"])} for device in cluster["devices"]]
    return cluster
