"""The cluster, as the controller records it and the attempts hold it."""

from __future__ import annotations

import time

import pytest

from estimators.model import Plan
from scamp_service.control.contained import ContainedErrors
from scamp_service.errors import Unavailable
from scamp_service.lifecycle import TrialState
from scamp_service.store.recorded_cluster import RecordedCluster, RecordedController
from tests.services.serving import DEVICE, InProcess, fill
from tests.values import changed, sized


def test_the_cluster_is_starting_until_a_controller_reports(api: InProcess) -> None:
    view = api.get("/v1/cluster").json()
    assert (view["status"], view["controller_alive"], view["devices"]) == ("starting", False, [])


def test_the_cluster_shows_devices_filled_by_gangs_and_who_waits(api: InProcess) -> None:
    study = fill(api.store)
    now = time.time()
    api.store.leases.take("controller", "c", None, now=now)
    cluster_state = RecordedCluster("ready", "", (DEVICE,), speed="a CPU was measured in 8 s")
    api.store.cluster.record(cluster_state, now=now)
    view = api.get("/v1/cluster").json()
    assert view["speed"] == "a CPU was measured in 8 s"
    assert (view["status"], view["controller_alive"]) == ("ready", True)
    [device] = view["devices"]
    assert (device["capacity_mib"], device["reserved_mib"], device["free_mib"]) == (96, 4, 92)
    [gang] = device["gangs"]
    assert gang == view["gangs"][0]
    assert (gang["number"], gang["study_id"], gang["study_name"], gang["mib_per_rank"]) == (1, study.id, "a study", 4)
    assert [(trial["number"], trial["state"]) for trial in view["waiting"]] == [(2, "WAITING")]


def test_the_cluster_is_starting_again_when_the_controller_falls_silent(api: InProcess) -> None:
    long_ago = time.time() - 60
    api.store.leases.take("controller", "c", None, now=long_ago)
    api.store.cluster.record(RecordedCluster("ready", "", (DEVICE,)), now=long_ago)
    view = api.get("/v1/cluster").json()
    assert (view["status"], view["controller_alive"]) == ("starting", False)
    assert view["controller_silent_seconds"] == pytest.approx(60, abs=5)
    assert "silent for 6" in view["detail"]


def test_a_waiting_trial_shows_the_ranks_of_its_plan(api: InProcess) -> None:
    study = fill(api.store)
    waiting = api.store.trials.page(study.id)[2]
    assert api.get("/v1/cluster").json()["waiting"][0]["num_ranks"] == 0
    planned = sized(Plan(2, 2, tp=2, dp_replicate=2))
    assert api.store.trials.move(waiting.id, TrialState.WAITING, 0, TrialState.QUEUED, now=1.0, sized=planned)
    assert api.get("/v1/cluster").json()["waiting"][0]["num_ranks"] == 4


def test_the_cluster_says_who_leads_since_when_and_which_errors_were_survived(api: InProcess) -> None:
    assert api.get("/v1/cluster").json()["controller"] is None
    errors = ContainedErrors()
    errors.add("propose 4 candidates", ValueError("no such sampler"), 3, now=20.0)
    errors.add("finish a cycle", Unavailable("locked"), 0, now=30.0)
    errors.add("propose 4 candidates", ValueError("no such sampler"), 3, now=40.0)
    leader = RecordedController("head", 17, since=10.0, errors=errors.recent)
    api.store.cluster.record(RecordedCluster("ready", "", controller=leader), now=time.time())
    view = api.get("/v1/cluster").json()["controller"]
    assert (view["host"], view["pid"], view["since"]) == ("head", 17, 10.0)
    assert [(error["doing"], error["error"], error["study_id"], error["times"]) for error in view["errors"]] == [
        ("propose 4 candidates", "ValueError: no such sampler", 3, 2),
        ("finish a cycle", "Unavailable: locked", None, 1),
    ]
    assert [(error["first_at"], error["last_at"]) for error in view["errors"]] == [(20.0, 40.0), (30.0, 30.0)]


def test_waiting_trials_say_what_they_lack_and_more_devices_are_tried_in_a_simulation(api: InProcess) -> None:
    study = fill(api.store)
    waiting = api.store.trials.page(study.id)[2]
    now = time.time()
    api.store.cluster.record(RecordedCluster("ready", "", (DEVICE,)), now=now)
    view = api.get("/v1/cluster").json()["waiting"][0]
    assert (view["blocked"], view["starts_in_seconds"]) == ("plan", None)
    api.app.state.forecasts._known = None  # not kept from before
    planned = changed(sized(Plan(4, 1, dp_replicate=2)), step_seconds=3.0)
    assert api.store.trials.move(waiting.id, TrialState.WAITING, 0, TrialState.QUEUED, now=1.0, sized=planned)
    view = api.get("/v1/cluster").json()["waiting"][0]
    assert (view["blocked"], view["starts_in_seconds"]) == ("too large", None)  # two ranks, one device
    answer = api.get("/v1/cluster/what-if?add=2xA100-40").json()
    assert answer["added"] == {"A100-40": 2} and answer["now"]["num_never"] >= 1
    assert answer["then"]["num_never"] == 0 and answer["then"]["makespan_seconds"] > 0
    assert answer["then"]["device_hours_by_kind"]["A100-40"] > 0
    refused = api.get("/v1/cluster/what-if?add=many")
    assert refused.status_code == 422 and "NODESxDEVICESxKIND" in refused.json()["detail"]
