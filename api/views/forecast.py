"""Views of a forecast of the live queue, and of one with more devices."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from api.forecasts import Now
from api.views.view import View
from scamp_service.model import Trial
from scamp_service.simulation.forecast import Forecast


class ForecastView(View):
    """The simulated future of the live queue."""

    makespan_seconds: Annotated[float, Field(description="seconds from now until all of it is done")]
    device_hours: Annotated[float, Field(description="devices × hours that it takes from now on")]
    device_hours_by_kind: Annotated[dict[str, float], Field(examples=[{"A100-40": 12.5}])]
    num_trials: Annotated[int, Field(description="trials that train from now on, also those that are yet to come")]
    num_never: Annotated[int, Field(description="trials that would not fit on these devices")]


class WhatIfView(View):
    """The live queue as it is, and with more devices."""

    added: Annotated[dict[str, int], Field(description="devices that are added, by kind", examples=[{"A100-40": 8}])]
    now: ForecastView
    then: ForecastView
    num_unknown: Annotated[int, Field(description="trials that are left out: nobody knows yet how long they take")]
    num_more: Annotated[int, Field(description="trials that are left out because there are too many")]


def forecast_view(forecast: Forecast) -> ForecastView:
    """View of a forecast."""
    return ForecastView(
        makespan_seconds=forecast.makespan_seconds,
        device_hours=forecast.device_hours,
        device_hours_by_kind=dict(forecast.device_hours_by_kind),
        num_trials=forecast.num_trials,
        num_never=forecast.num_never,
    )


def blocked_of(now: Now | None, trial: Trial) -> str:
    """Code for what a waiting trial lacks; empty if it is about to start."""
    if now is None:
        return ""
    if trial.id in now.load.waits:
        return now.load.waits[trial.id]
    wait = now.forecast.lacking.get(trial.id)
    return wait.blocked.value if wait else ""


def start_of(now: Now | None, trial: Trial) -> float | None:
    """Seconds from now until a waiting trial starts; None where that is not known."""
    return None if now is None else now.forecast.starts.get(trial.id)
