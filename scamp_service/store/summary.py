"""Summarizes a study in a few numbers, which ``scamp run --json`` prints, the API shows and the benchmarks compare.

It reads the numbers that the store keeps (``tallies``), not the trials. Only ``study_summary``, ``learned_of``,
``all_trials`` and ``device_fill`` read the database; the rest is pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from estimators.learning import WINDOW_TRIALS, Learned, learn
from scamp_service.lifecycle import has_no_success, seen_state, state_text
from scamp_service.model import Json, Study, Trial
from scamp_service.store.reads import Reads
from scamp_service.store.recorded_cluster import STARTING
from scamp_service.store.tallies import (
    COLOCATED,
    DEVICE_SECONDS,
    HEALED,
    SPARED,
    UNEVEN,
    Counted,
    ErrorSummary,
    device_seconds,
)
from scamp_service.study.objectives import Objectives

FRONT_IN_SUMMARY = 100
FAMILIES_IN_SUMMARY = 20
"""A summary says what was learned of this many families, the largest ones: a study may have thousands."""


@dataclass(frozen=True, slots=True)
class Best:
    """The leading trial: the best completed one, or else the best that still runs. ``plan`` is its plan in words."""

    trial: int
    value: float
    params: Json
    plan: str


@dataclass(frozen=True, slots=True)
class FrontTrial:
    """A trial on the Pareto front. ``values`` are those of the study's objectives, in their order."""

    trial: int
    values: Sequence[float]
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
      tensors of one rank. It covers the last attempt of each trial with an exact measurement. Both are None if samples
      differ in size, ``is_uneven``: then peaks are predicted for the largest, which the measured step need not have.
    - ``step_error_pct``: the same for the seconds of a step, over the last attempt of each trial with a timed step.
    - ``out_of_memory``: ``attempts`` counts the attempts that ran out of memory. They give only a lower bound, so they
      are not in the prediction error. ``least_excess_pct`` is how far the worst exceeded its prediction, at least.
    - ``device_seconds``: seconds × devices held. ``wall_seconds``: from creation to the end, or until now.
    - ``best_metrics``: the last evaluation of the best trial, or its best where that counts; None for NaN and infinity,
      which JSON does not have.
    - ``front``: with several objectives, the trials on the Pareto front, the best of the first objective first; at
      most ``FRONT_IN_SUMMARY``, evenly chosen from more. Then there is no best trial.
    - ``regret_bound``: with ``budget.terminator``, how much better the best candidate of the space may be than the best
      that was found, with high probability; None while it is not known.
    - ``learned``: the memory correction for each of the largest families of the study and each layout that it has run
      with.
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
    is_uneven: bool
    prediction_error_pct: Mapping[str, float | None]
    step_error_pct: Mapping[str, float | None]
    out_of_memory: Mapping[str, float | None]
    device_seconds: float
    wall_seconds: float
    best_metrics: Mapping[str, float | None] = field(default_factory=dict)
    front: Sequence[FrontTrial] = ()
    regret_bound: float | None = None
    learned: Sequence[Json] = ()

    def to_json(self) -> dict[str, Any]:
        """The fields as a dictionary of JSON values."""
        return asdict(self)


def summarize(
    study: Study, counted: Counted, best: Trial | None, open_attempts: Iterable[Any], *, now: float
) -> Summary:
    """The summary of a study, without ``best_metrics`` and ``learned``, which need the database.

    ``open_attempts`` need devices, ``created_at`` and ``ended_at``: those of attempts that have not ended.
    """
    state = seen_state(study.state, study.spec)
    tallies, is_uneven = counted.tallies, counted.tallies.get(UNEVEN, 0) > 0
    return Summary(
        study=study.id,
        name=study.name,
        state=state.value,
        state_text=state_text(state, counted.states),
        no_success=has_no_success(state, counted.states),
        trials={state.value: num for state, num in counted.states.items()},
        best=Best(best.number, best.value or 0.0, best.params, str(best.plan or "")) if best else None,
        degrees=counted.degrees,
        colocated=int(tallies.get(COLOCATED, 0)),
        healed=int(tallies.get(HEALED, 0)),
        spared=int(tallies.get(SPARED, 0)),
        is_uneven=is_uneven,
        prediction_error_pct=asdict(ErrorSummary() if is_uneven else counted.peak_error_pct),
        step_error_pct=asdict(counted.step_error_pct),
        out_of_memory={"attempts": counted.num_oom, "least_excess_pct": counted.least_excess_pct},
        device_seconds=tallies.get(DEVICE_SECONDS, 0.0)
        + sum(device_seconds(open_attempt, now) for open_attempt in open_attempts),
        wall_seconds=(study.finished_at or now) - study.created_at,
        regret_bound=study.regret_bound,
    )


def study_summary(store: Reads, study_id: int, *, now: float) -> Summary:
    """The complete summary of a stored study. Raises ``NotFound``."""
    study, counted = store.study(study_id), store.counted(study_id)
    objectives = Objectives.of_spec(study.spec)
    best = store.leading_trial(study_id, objectives)
    summary = summarize(study, counted, best, store.open_holds(study_id), now=now)
    largest = counted.families[:FAMILIES_IN_SUMMARY]
    learned = [learned_json(*item) for item in learned_of(store, largest)]
    summary = replace(summary, learned=learned, front=front_of(store, study_id, objectives))
    if best is None:
        return summary
    if best.best_step is None:
        evaluations = store.metrics(best.id, after=best.step - 1)[-1:]
    else:
        evaluations = store.metrics(best.id, after=best.best_step - 1, limit=1)
    last = evaluations[0].values if evaluations else {}
    if best.value is not None:  # other programs' values need not be among their reports
        last = {**last, study.spec["objective"]["metric"]: best.value}
    return replace(
        summary, best_metrics={name: value if math.isfinite(value) else None for name, value in last.items()}
    )


def front_of(store: Reads, study_id: int, objectives: Objectives) -> list[FrontTrial]:
    """The Pareto front of a study, the best of the first objective first; empty with one objective."""
    points = {
        score.number: values for score in store.front(study_id, objectives) if (values := objectives.values_of(score))
    }
    order = sorted(points, key=lambda number: (objectives.keys(points[number]), number))
    num = min(len(order), FRONT_IN_SUMMARY)
    chosen = [order[index * (len(order) - 1) // max(1, num - 1)] for index in range(num)]
    trials = {trial.number: trial for trial in store.trials_numbered(study_id, chosen)}
    return [
        FrontTrial(number, points[number], trials[number].params, str(trials[number].plan or "")) for number in chosen
    ]


def learned_of(store: Reads, families: Iterable[str]) -> list[tuple[str, Learned]]:
    """The memory corrections of each of these families, for the device kinds that the family has run on."""
    rows = []
    for family in families:
        past = store.family_runs(family, WINDOW_TRIALS)
        learned = learn(past, {kind for run in past for kind in run.device_kinds})
        rows += [(family, correction) for correction in learned.values()]
    return rows


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
    cluster = dict((recorded[0] if recorded else STARTING).to_json())
    trials = {trial.id: trial for trial in store.live_trials()}
    attempts = store.open_attempts()

    def gangs_on(device: str) -> list[Json]:
        here = [attempt for attempt in attempts if device in attempt.devices]
        # A gang may still be stopping after its trial has ended.
        holders = [trials.get(attempt.trial_id) or store.trial(attempt.trial_id) for attempt in here]
        return [
            {"study_id": trial.study_id, "number": trial.number, "mib_per_rank": attempt.mib_on(device)}
            for attempt, trial in zip(here, holders, strict=True)
        ]

    cluster["devices"] = [{**device, "gangs": gangs_on(device["id"])} for device in cluster["devices"]]
    return cluster
