"""Views for charts: a study's history, its learning curves, and which attempts outline predicted against measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import nsmallest
from itertools import pairwise
from typing import Annotated

from pydantic import Field

from api.thinning import improvements, lttb, merged_points, spread_evenly
from api.views.view import LastEvent, View
from scamp_service.lifecycle import Outcome, TrialState
from scamp_service.store.rows import HistoryRow, MeasuredPoint, Point, Score
from scamp_service.study.objective import Objective
from scamp_service.study.objectives import Objectives

MOST_CURVES = 200
"""Lines that can still be told apart and drawn in a frame."""
NOT_BEGUN = (TrialState.WAITING, TrialState.QUEUED)


class HistoryView(View):
    """Objective by trial number, as columns: item i of each list belongs to the same trial."""

    num_trials: Annotated[int, Field(description="trials that have begun or ended; more than `number` if thinned")]
    number: list[int]
    id: list[int]
    state: list[TrialState]
    step: list[int]
    value: Annotated[
        list[float | None], Field(description="null: the trial has reported none, or one that is not finite")
    ]
    leading: Annotated[
        list[int],
        Field(description="numbers of the trials whose curves are worth drawing: running, best, newest; at most 200"),
    ]
    last_event_id: LastEvent


class FrontView(View):
    """Trials by the values of their objectives, as columns: item i of each list belongs to the same trial."""

    metrics: Annotated[list[str], Field(description="metric of each objective")]
    directions: Annotated[list[str], Field(description="`maximize` or `minimize`, of each objective")]
    num_trials: Annotated[
        int, Field(description="trials with a value for each objective; more than `number` if thinned")
    ]
    number: list[int]
    state: list[TrialState]
    values: Annotated[list[list[float]], Field(description="for each trial the value of each objective")]
    on_front: Annotated[
        list[bool], Field(description="whether no other completed trial is better in one objective and worse in none")
    ]
    last_event_id: LastEvent


class CurveView(View):
    """One metric of a trial by step, thinned; only finite values."""

    trial_id: int
    number: Annotated[int, Field(description="number of the trial in the study")]
    metric: str
    step: list[int]
    value: list[float]
    resumed: Annotated[list[int], Field(description="first steps of later attempts, which went on from a checkpoint")]


class OrderView(View):
    """Trials in the order of a column; a trial without a value there comes last."""

    number: Annotated[list[int], Field(description="their numbers in the study")]


def history_view(
    trials: Sequence[HistoryRow], objective: Objective, num_points: int, last_event_id: int
) -> HistoryView:
    """View of a study's history in at most ``num_points`` points, and those of improvements and running trials.

    Half of the points are its outline and three tenths any values, so that both the extremes and the bulk are seen. A
    trial that ended without a value is a mark at the edge; these get the rest.
    """
    values = [_finite(trial.value) for trial in trials]
    valued = [index for index, value in enumerate(values) if value is not None]
    rest = [i for i, trial in enumerate(trials) if values[i] is None and trial.state not in NOT_BEGUN]
    completed = [i for i in valued if trials[i].state is TrialState.COMPLETED]
    better = [completed[i] for i in improvements([values[i] for i in completed], objective)]
    line = lttb([trials[i].number for i in valued], [values[i] or 0.0 for i in valued], num_points // 2)
    bulk = spread_evenly(len(valued), num_points * 3 // 10)
    marks = spread_evenly(len(rest), num_points // 5)
    running = [i for i, trial in enumerate(trials) if trial.state is TrialState.RUNNING]
    chosen = merged_points((valued[i] for i in merged_points(line, bulk)), (rest[i] for i in marks), better, running)
    return HistoryView(
        num_trials=len(trials),
        number=[trials[i].number for i in chosen],
        id=[trials[i].id for i in chosen],
        state=[trials[i].state for i in chosen],
        step=[trials[i].step for i in chosen],
        value=[values[i] for i in chosen],
        leading=_leading(trials, objective),
        last_event_id=last_event_id,
    )


def front_view(scores: Sequence[Score], objectives: Objectives, num_points: int, last_event_id: int) -> FrontView:
    """View of the trials by their objectives: the whole front, those that run, and about ``num_points`` others."""
    scored = [(score, values) for score in scores if (values := objectives.values_of(score)) is not None]
    members = {score.number for score in objectives.front_of(scores)}
    running = [i for i, (score, _) in enumerate(scored) if score.state is TrialState.RUNNING]
    places = [i for i, (score, _) in enumerate(scored) if score.number in members]
    chosen = [scored[i] for i in merged_points(spread_evenly(len(scored), num_points), running, places)]
    return FrontView(
        metrics=list(objectives.names),
        directions=[objective.direction for objective in objectives.items],
        num_trials=len(scored),
        number=[score.number for score, _ in chosen],
        state=[score.state for score, _ in chosen],
        values=[list(values) for _, values in chosen],
        on_front=[score.number in members for score, _ in chosen],
        last_event_id=last_event_id,
    )


def curve_views(trial_id: int, number: int, points: Sequence[Point], metric: str, num_points: int) -> list[CurveView]:
    """One view for each metric of the trial, or only for ``metric``; empty without a finite value."""
    names = {name for point in points for name in point.values if metric in ("", name)}
    resumed = [after.step for before, after in pairwise(points) if after.attempt != before.attempt]
    views = []
    for name in sorted(names):
        points_with_value = [
            (point.step, value) for point in points if isinstance(value := point.values.get(name), int | float)
        ]
        steps, values = [step for step, _ in points_with_value], [float(value) for _, value in points_with_value]
        places = lttb(steps, values, num_points)
        views.append(
            CurveView(
                trial_id=trial_id,
                number=number,
                metric=name,
                step=[steps[i] for i in places],
                value=[values[i] for i in places],
                resumed=resumed,
            )
        )
    return views


def outline(points: Sequence[MeasuredPoint], most: int) -> list[int]:
    """Ids of at most ``most`` trials that outline predicted against measured peaks and step times.

    Up to a third are trials that ran out of memory. Attempts of a trial stay together.
    """
    failed = [point for point in points if point.outcome is Outcome.OUT_OF_MEMORY]
    exact = [point for point in points if point.outcome is not Outcome.OUT_OF_MEMORY]
    failed = [failed[i] for i in spread_evenly(len(failed), most // 3)]
    timed = [point for point in exact if point.choice.step_seconds and point.measured_step_seconds]
    memory = _hull(exact, [(point.expected_bytes, point.measured_bytes) for point in exact], most // 3)
    seconds = [(point.choice.step_seconds or 0.0, point.measured_step_seconds or 0.0) for point in timed]
    return sorted({point.trial_id for point in (*failed, *memory, *_hull(timed, seconds, most // 3))})


def _hull(points: Sequence[MeasuredPoint], places: Sequence[tuple[float, float]], most: int) -> list[MeasuredPoint]:
    """Points that keep the look of a line through all of them, by what was predicted and then measured."""
    order = sorted(range(len(points)), key=places.__getitem__)
    corners = lttb([places[i][0] for i in order], [places[i][1] for i in order], max(2, most))
    return [points[order[i]] for i in corners]


def _leading(trials: Sequence[HistoryRow], objective: Objective) -> list[int]:
    def rank(trial: HistoryRow) -> tuple[int, float, int]:
        value = _finite(trial.value)
        if trial.state is TrialState.RUNNING:
            return 0, 0.0, -trial.number
        if value is None:
            return 2, 0.0, -trial.number
        return 1, objective.key(value), -trial.number

    begun = (trial for trial in trials if trial.attempt)
    return [trial.number for trial in nsmallest(MOST_CURVES, begun, key=rank)]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
