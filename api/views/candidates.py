"""Views of a study's candidates for charts over parameters: values of some parameters by trial, as columns."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field

from api.thinning import spread_evenly
from api.views.view import LastEvent, View
from scamp_service.lifecycle import TrialState
from scamp_service.store.table.series import Series
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


@dataclass(frozen=True, slots=True)
class Candidates:
    """Trials that are shown, by number, as columns; ``num_trials`` have a value."""

    num_trials: int
    number: list[int]
    state: list[TrialState]
    value: list[float]
    rank: list[float]

    @classmethod
    def of(cls, series: Series, objective: Objective, most: int) -> Self:
        """At most ``most`` trials with a value: a tenth are the best, the others are spread evenly over the rest."""
        valued = series[~np.isnan(series.value)]
        order = np.argsort(objective.keys(valued.value), kind="stable")
        rank = np.empty(len(order))
        rank[order] = np.arange(len(order)) / max(1, len(order))
        best, rest = order[: most // 10], np.sort(order[most // 10 :])
        places = np.sort(np.concatenate([best, rest[spread_evenly(len(rest), most - len(best))]]))
        shown = valued[places]
        return cls(len(valued), shown.number.tolist(), shown.states(), shown.value.tolist(), rank[places].tolist())


def candidates_view(
    candidates: Candidates,
    params: Mapping[int, Mapping[str, Any]],
    spec: Mapping[str, Any],
    parameter_names: Collection[str],
    last_event_id: int,
) -> CandidatesView:
    """View of candidates with these parameters by number. ``parameter_names`` are shown, or the first without any."""
    axes = axes_of(spec.get("space", {}))
    shown = [params.get(number, {}) for number in candidates.number]
    names = list(axes) or sorted({name for each in shown for name in names_in(each)})
    chosen = [name for name in parameter_names if name in names] or [
        name for name in names if not _IN_BLOCK.search(name)
    ][:MOST_AXES]
    return CandidatesView(
        num_trials=candidates.num_trials,
        names=names[:MOST_NAMES],
        number=candidates.number,
        state=candidates.state,
        value=candidates.value,
        rank=candidates.rank,
        axes=[_axis_view(name, axes.get(name), [axis_value(each, name) for each in shown]) for name in chosen],
        last_event_id=last_event_id,
    )


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
