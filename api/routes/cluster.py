"""The cluster as the controller last recorded it, with the current gangs and waiting trials."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from fastapi import APIRouter, Query

from api.access.allowed import TheAccess
from api.ready_probe import controller_silent_seconds
from api.routes.answers import problems
from api.routes.parameters import TheForecasts, TheSettings, TheStore
from api.views.cluster import (
    ClusterView,
    GangView,
    controller_view,
    device_view,
    gang_view,
    hidden_gang_view,
    waiting_view,
)
from api.views.forecast import WhatIfView, blocked_of, forecast_view, start_of
from placement.packing.device_time import IdleRule
from scamp_service.access.model import Access
from scamp_service.files import trouble_with_data
from scamp_service.lifecycle import TrialState
from scamp_service.model import Attempt, Study, Trial, reserved_mibs
from scamp_service.store.recorded_cluster import STARTING
from scamp_service.store.store import Store

router = APIRouter(prefix="/v1", tags=["cluster"])
MOST_WAITING = 200
WAITING_STATES = frozenset({TrialState.WAITING, TrialState.QUEUED, TrialState.PAUSED})


@router.get("/cluster", responses=problems())
def get_cluster(store: TheStore, settings: TheSettings, forecasts: TheForecasts, access: TheAccess) -> ClusterView:
    """Devices with the gangs that hold them and their memory in MiB, and the trials that wait for devices."""
    event_id = store.events.last_id()
    recorded = store.cluster.recorded()
    state, confirmed = recorded if recorded else (STARTING, None)
    silent = controller_silent_seconds(store, confirmed)
    alive = silent is not None and silent <= settings.lease_seconds
    names = _Names(store, access)
    trials = {trial.id: trial for trial in store.trials.live()}
    rule = settings.idle_rule
    gangs = [_gang(store, attempt, mib, trials, names, rule) for attempt, mib in reserved_mibs(store.attempts.open())]
    waiting = [trial for trial in trials.values() if trial.state in WAITING_STATES and names.of(trial.study_id)]
    shown = waiting[:MOST_WAITING]
    forecast = forecasts.now() if shown else None
    return ClusterView(
        status=state.status if alive else STARTING.status,
        detail=state.detail if alive else _why_silent(silent),
        data_directory=trouble_with_data(settings),
        speed=state.speed,
        controller_alive=alive,
        controller_silent_seconds=silent,
        controller=controller_view(state.controller, access.sees_all) if state.controller else None,
        devices=[device_view(device, gangs) for device in state.devices],
        gangs=gangs,
        waiting=[
            waiting_view(trial, names.of(trial.study_id) or "", blocked_of(forecast, trial), start_of(forecast, trial))
            for trial in shown
        ],
        num_waiting=len(waiting),
        last_event_id=event_id,
    )


@router.get("/cluster/what-if", responses=problems(422))
def what_if(
    forecasts: TheForecasts,
    add: Annotated[
        str,
        Query(
            description="devices to add, as `NODESxDEVICESxKIND` or `DEVICESxKIND`; several are joined with commas",
            max_length=200,
            examples=["8xA100-40"],
        ),
    ],
) -> WhatIfView:
    """When the live queue would be done with more devices, and how many device-hours it takes, compared with now.

    Both are simulated. Every trial counts as trained to its end, so a study that stops trials early ends sooner.
    """
    forecast = forecasts.now()
    added, then = forecasts.with_more(add)
    kinds = Counter(device.kind for device in added.devices)
    return WhatIfView(
        added=dict(sorted(kinds.items())),
        now=forecast_view(forecast.forecast),
        then=forecast_view(then),
        num_unknown=forecast.load.num_unknown,
        num_more=forecast.load.num_more,
    )


def _why_silent(silent: float | None) -> str:
    return "no controller has reported yet" if silent is None else f"the controller has been silent for {silent:.0f} s"


class _Names:
    """Names of studies, as far as one may read them."""

    def __init__(self, store: Store, access: Access) -> None:
        self._studies, self._projects = store.studies, access.projects
        self._names = {study.id: self._readable(study) for study in store.studies.live()}

    def of(self, study_id: int) -> str | None:
        """The name of a study; None if one may not read it."""
        if study_id not in self._names:
            self._names[study_id] = self._readable(self._studies.get(study_id))
        return self._names[study_id]

    def _readable(self, study: Study) -> str | None:
        return study.name if self._projects is None or study.project in self._projects else None


def _gang(
    store: Store, attempt: Attempt, mib: int, trials: dict[int, Trial], names: _Names, rule: IdleRule
) -> GangView:
    # A gang may still be stopping after its trial and study have ended.
    trial = trials.get(attempt.trial_id) or store.trials.get(attempt.trial_id)
    name = names.of(trial.study_id)
    if name is None:
        return hidden_gang_view(attempt, mib, rule)
    return gang_view(attempt, mib, trial, name, rule)
