"""Views for charts: a study's history, its learning curves, and which attempts outline predicted against measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

import numpy as np
from pydantic import Field

from api.thinning import improvements, lttb, merged_points, spread_evenly
from api.views.view import LastEvent, View
from scamp_service.lifecycle import TrialState
from scamp_service.store.rows import HistoryRow, Point, Score
from scamp_service.store.table.series import Series
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

    number: Annotated[list[int], Field(description="their numbers in the study; only the first ones with a `limit`")]
    num_trials: Annotated[int, Field(description="trials that there are, also those behind the limit")]


def thinned_history(series: Series, objective: Objective, num_points: int) -> list[int]:
    """Numbers of at most ``num_points`` trials that show a study's history, and of improvements and running trials.

    Half of the points are its outline and three tenths any values, so that both the extremes and the bulk are seen. A
    trial that ended without a value is a mark at the edge; these get the rest.
    """
    has_value = ~np.isnan(series.value)
    valued = series[has_value]
    line = lttb(valued.number, valued.value, num_points // 2)
    bulk = spread_evenly(len(valued), num_points * 3 // 10)
    completed = valued[valued.has_state(TrialState.COMPLETED)]
    better = improvements(completed.value, objective)
    rest = series[~has_value & ~series.has_state(*NOT_BEGUN)]
    marks = spread_evenly(len(rest), num_points // 5)
    running = series[series.has_state(TrialState.RUNNING)]
    shown = valued.number[line], valued.number[bulk], completed.number[better], rest.number[marks], running.number
    return merged_points(*shown)


def leading(series: Series, objective: Objective) -> list[int]:
    """Numbers of the trials whose curves are worth drawing: running, then the best, then the newest."""
    begun = series[series.has_run]
    is_running, has_value = begun.has_state(TrialState.RUNNING), ~np.isnan(begun.value)
    group = np.where(is_running, 0, np.where(has_value, 1, 2))
    keys = np.where(group == 1, objective.keys(begun.value), 0.0)
    order = np.lexsort((-begun.number, keys, group))
    numbers: list[int] = begun.number[order[:MOST_CURVES]].tolist()
    return numbers


def history_view(trials: Sequence[HistoryRow], num_trials: int, leading: list[int], last_event_id: int) -> HistoryView:
    """View of a study's history that shows these of its ``num_trials`` trials."""
    return HistoryView(
        num_trials=num_trials,
        number=[trial.number for trial in trials],
        id=[trial.id for trial in trials],
        state=[trial.state for trial in trials],
        step=[trial.step for trial in trials],
        value=[trial.value if trial.value is not None and math.isfinite(trial.value) else None for trial in trials],
        leading=leading,
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
