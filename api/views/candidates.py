"""Views of a study's candidates for charts over parameters: values of some parameters by trial, as columns."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from api.thinning import merged_points, spread_evenly
from api.views.view import LastEvent, View
from scamp_service.lifecycle import TrialState
from scamp_service.study.objective import Objective
from scamp_service.study.spaces.parameter_axes import ParameterAxis, axes_of, axis_value, fitted_axis, names_in

MOST_AXES = 12
"""Parameters that an answer has if none is asked for."""
MOST_NAMES = 500
_IN_BLOCK = re.compile(r"\.\d+\.")


class AxisView(View):
    """One parameter: its axis, and where each trial is on it."""

    name: Annotated[str, Field(description="flat name, such as `lr` or `layers.0.width`")]
    choices: Annotated[list[Any] | None, Field(description="values in their order; null: numbers from `low` to `high`")]
    low: float
    high: float
    log: Annotated[bool, Field(description="whether the axis is logarithmic")]
    place: Annotated[
        list[float | None],
        Field(description="for each trial its number, of choices the index; null: it does not have the parameter"),
    ]


class CandidatesView(View):
    """Trials that have a value, as columns: item i of each list belongs to the same trial."""

    num_trials: Annotated[int, Field(description="trials with a value; more than `number` if thinned")]
    names: Annotated[list[str], Field(description="every parameter that may be asked for, at most 500")]
    number: list[int]
    state: list[TrialState]
    value: list[float]
    rank: Annotated[
        list[float],
        Field(description="share of the trials with a value, also of those that are not sent, that are better, 0 to 1"),
    ]
    axes: list[AxisView]
    last_event_id: LastEvent


class ImportanceView(View):
    """One parameter."""

    name: str
    share: Annotated[float, Field(description="share of the importance of all parameters, 0 to 1")]


class ImportancesView(View):
    """How much each parameter matters to be among the best tenth; empty while fewer than 8 trials have a value."""

    num_ended: Annotated[int, Field(description="trials that have completed or were stopped early")]
    num_trials: Annotated[
        int,
        Field(description="trials that they are computed from: those with a value, at most 2000"),
    ]
    is_rough: Annotated[bool, Field(description="whether fewer than 20 trials are too few to trust the shares")]
    items: Annotated[list[ImportanceView], Field(description="the most important first, at most 40")]


def candidates_view(
    rows: Sequence[Any],
    spec: Mapping[str, Any],
    objective: Objective,
    parameter_names: Collection[str],
    num_points: int,
    last_event_id: int,
) -> CandidatesView:
    """View of at most ``num_points`` trials: a tenth are the best, the others are spread evenly over the rest.

    ``rows`` are by number; ``parameter_names`` are shown, or the first if none is given.
    """
    axes = axes_of(spec.get("space", {}))
    valued = [row for row in rows if row.value is not None and math.isfinite(row.value)]
    names = list(axes) or sorted({name for row in valued for name in names_in(row.params)})
    order = sorted(range(len(valued)), key=lambda index: objective.key(valued[index].value))
    rank = {index: place / len(order) for place, index in enumerate(order)}
    places = _thinned(order, num_points)
    shown = [valued[index] for index in places]
    chosen = [name for name in parameter_names if name in names] or [
        name for name in names if not _IN_BLOCK.search(name)
    ][:MOST_AXES]
    return CandidatesView(
        num_trials=len(valued),
        names=names[:MOST_NAMES],
        number=[row.number for row in shown],
        state=[row.state for row in shown],
        value=[row.value for row in shown],
        rank=[rank[index] for index in places],
        axes=[_axis_view(name, axes.get(name), [axis_value(row.params, name) for row in shown]) for name in chosen],
        last_event_id=last_event_id,
    )


def _thinned(order: Sequence[int], most: int) -> list[int]:
    """At most ``most`` of these indices, which are ordered with the best first; ascending."""
    if len(order) <= most:
        return sorted(order)
    best, rest = order[: most // 10], sorted(order[most // 10 :])
    return merged_points(best, (rest[index] for index in spread_evenly(len(rest), most - len(best))))


def _axis_view(name: str, known_axis: ParameterAxis | None, values: Sequence[Any]) -> AxisView:
    axis = fitted_axis(known_axis, name, values)
    return AxisView(
        name=name,
        choices=None if axis.choices is None else list(axis.choices),
        low=axis.low,
        high=axis.high,
        log=axis.log,
        place=[axis.place(value) for value in values],
    )
