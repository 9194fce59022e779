"""The cluster, as the controller records it and the attempts hold it."""

from __future__ import annotations

import time

import pytest

from estimators.model import Plan
from scamp_service.lifecycle import TrialState
from tests.serving import DEVICE, InProcess, fill
from tests.values import sized


def test_the_cluster_is_starting_until_a_controller_reports(api: InProcess) -> None:
    view = api.get("/v1/cluster").json()
    assert (view["status"], view["controller_alive"], view["devices"]) == ("starting", False, [])


def test_the_cluster_shows_devices_filled_by_gangs_and_who_waits(api: InProcess) -> None:
    study = fill(api.store)
    now = time.time()
    api.store.take_lease("controller", "c", None, now=now)
    api.store.record_cluster({"status": "ready", "detail": "", "devices": [DEVICE]}, now=now)
    view = api.get("/v1/cluster").json()
    assert (view["status"], view["controller_alive"]) == ("ready", True)
    [device] = view["devices"]
    assert (device["capacity_mib"], device["reserved_mib"], device["free_mib"]) == (96, 4, 92)
    [gang] = device["gangs"]
    assert gang == view["gangs"][0]
    assert (gang["number"], gang["study_id"], gang["study_name"], gang["mib_per_rank"]) == (1, study.id, "a study", 4)
    assert [(trial["number"], trial["state"]) for trial in view["waiting"]] == [(2, "WAITING")]


def test_the_cluster_is_starting_again_when_the_controller_falls_silent(api: InProcess) -> None:
    long_ago = time.time() - 60
    api.store.take_lease("controller", "c", None, now=long_ago)
    api.store.record_cluster({"status": "ready", "detail": "", "devices": [DEVICE]}, now=long_ago)
    view = api.get("/v1/cluster").json()
    assert (view["status"], view["controller_alive"]) == ("starting", False)
    assert view["controller_silent_seconds"] == pytest.approx(60, abs=5)
    assert "silent for 6" in view["detail"]


def test_a_waiting_trial_shows_the_ranks_of_its_plan(api: InProcess) -> None:
    study = fill(api.store)
    waiting = api.store.trials(study.id)[2]
    assert api.get("/v1/cluster").json()["waiting"][0]["num_ranks"] == 0
    planned = sized(Plan(2, 2, tp=2, dp_replicate=2))
    assert api.store.move_trial(waiting.id, TrialState.WAITING, 0, TrialState.QUEUED, now=1.0, sized=planned)
    assert api.get("/v1/cluster").json()["waiting"][0]["num_ranks"] == 4
