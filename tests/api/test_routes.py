"""What the API answers, over a real database."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from estimators.model import Plan
from scamp_service.lifecycle import Outcome, TrialState
from scamp_service.model import LogLine, Metric
from tests.serving import DEVICE, SECRET, SPEC, InProcess, end, fill


def test_a_study_is_created_at_its_location_with_all_defaults(api: InProcess) -> None:
    answer = api.submit()
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/v1/studies/{answer.json()['id']}"
    found = api.get(answer.headers["location"]).json()
    assert found["spec"] == answer.json()["spec"]
    assert found["spec"]["budget"]["trials"] == 20
    assert (found["state"], found["trials"], found["best"]) == ("RUNNING", {}, None)


def test_the_same_key_and_body_give_the_same_study(api: InProcess) -> None:
    first, again = (api.submit(**{"Idempotency-Key": "k"}) for _ in range(2))
    assert first.json()["id"] == again.json()["id"]
    assert len(api.get("/v1/studies").json()["items"]) == 1


def test_a_key_reused_for_another_study_is_a_conflict_that_stores_nothing(api: InProcess) -> None:
    api.submit(**{"Idempotency-Key": "k"})
    answer = api.submit({**SPEC, "name": "another"}, **{"Idempotency-Key": "k"})
    assert answer.status_code == 409
    assert "take a new key" in answer.json()["detail"]
    assert len(api.get("/v1/studies").json()["items"]) == 1


def test_a_study_tells_its_trials_by_state_its_best_and_its_summary(api: InProcess) -> None:
    study = fill(api.store)
    view = api.get(f"/v1/studies/{study.id}").json()
    assert view["trials"] == {"WAITING": 1, "RUNNING": 1, "COMPLETED": 1}
    assert view["best"] == {
        "trial": 0, "value": pytest.approx(0.53), "params": {"lr": 0.01}, "plan": "1 rank, micro-batch 8"
    }  # fmt: skip
    assert view["device_seconds"] > 0
    assert view["summary"]["degrees"] == {"1": 2}
    assert view["summary"]["best_metrics"] == {"accuracy": pytest.approx(0.53)}
    listed = api.get("/v1/studies").json()["items"][0]
    assert {key: listed[key] for key in ("trials", "best")} == {key: view[key] for key in ("trials", "best")}


def test_an_evaluation_that_is_not_a_number_is_null_in_the_summary(api: InProcess) -> None:
    study = fill(api.store)
    running = api.store.trials(study.id)[1]
    row = Metric(running.id, 1, 0, 99, {"accuracy": 0.9, "loss": float("nan")}, 1.0)
    assert api.store.report(running.id, 1, SECRET, metrics=[row], objective="accuracy", now=3.0)
    end(api.store, running.id)
    assert api.get(f"/v1/studies/{study.id}").json()["summary"]["best_metrics"] == {"accuracy": 0.9, "loss": None}


def test_pages_follow_each_other_without_a_gap_or_a_repeat(api: InProcess) -> None:
    study = fill(api.store, num_trials=5)
    path, numbers = f"/v1/studies/{study.id}/trials?limit=2", []
    for _ in range(3):
        answer = api.get(path)
        numbers += [trial["number"] for trial in answer.json()["items"]]
        if answer.json()["next"] is None:
            assert "link" not in answer.headers
            break
        path = answer.headers["link"].split(">")[0].removeprefix("<")
        assert f"after={answer.json()['next']}" in path
    assert numbers == [0, 1, 2, 3, 4]


def test_the_last_page_has_no_next_even_when_it_is_full(api: InProcess) -> None:
    study = fill(api.store, num_trials=4)
    page = api.get(f"/v1/studies/{study.id}/trials?limit=4").json()
    assert len(page["items"]) == 4 and page["next"] is None


def test_trials_are_filtered_by_state(api: InProcess) -> None:
    study = fill(api.store, num_trials=4)
    page = api.get(f"/v1/studies/{study.id}/trials?state=WAITING&state=RUNNING").json()
    assert [trial["number"] for trial in page["items"]] == [1, 2, 3]


def test_studies_are_listed_newest_first_when_asked(api: InProcess) -> None:
    ids = [api.submit().json()["id"] for _ in range(3)]
    first = api.get("/v1/studies?newest_first=true&limit=2").json()
    rest = api.get(f"/v1/studies?newest_first=true&limit=2&after={first['next']}").json()
    assert [study["id"] for study in (*first["items"], *rest["items"])] == ids[::-1]


def test_a_trial_is_addressed_by_its_number_and_comes_with_its_attempts(api: InProcess) -> None:
    fill(api.store)
    study = fill(api.store)  # ids and numbers differ here
    trial = api.get(f"/v1/studies/{study.id}/trials/0").json()
    assert (trial["number"], trial["study_id"], trial["state"]) == (0, study.id, "COMPLETED")
    assert (trial["plan_text"], trial["num_ranks"]) == ("1 rank, micro-batch 8", 1)
    [attempt] = trial["attempts"]
    assert (attempt["state"], attempt["outcome"], attempt["devices"]) == ("ENDED", "DONE", ["n/0"])
    assert attempt["placement_reason"] == "first free device"


def test_peaks_are_told_by_attempt_and_an_out_of_memory_is_a_lower_bound(api: InProcess) -> None:
    fill(api.store)
    study = fill(api.store)
    running = api.store.trials(study.id)[1]
    assert api.store.report_outcome(running.id, 1, SECRET, Outcome.OUT_OF_MEMORY, "", now=1.0)
    assert api.store.move_trial(running.id, TrialState.RUNNING, 1, TrialState.WAITING, now=2.0, num_oom=1)
    path = f"/v1/studies/{study.id}/peaks"
    peak = {"attempt": 1, "predicted_bytes": 3 * 2**20, "reserved_mib": 4}
    exact = {**peak, "outcome": "DONE", "measured_bytes": 2 * 2**20, "lower_bound": False}
    bound = {**peak, "outcome": "OUT_OF_MEMORY", "measured_bytes": 4 * 2**20, "lower_bound": True}
    first, second = api.get(path).json()["items"]
    assert (first["number"], first["attempts"]) == (0, [exact])
    assert (second["number"], second["trial_id"], second["attempts"]) == (1, running.id, [bound])
    page = api.get(path, params={"limit": 1}).json()
    assert page["items"] == [first] and page["next"] == first["trial_id"]
    rest = api.get(path, params={"limit": 1, "after": page["next"]}).json()
    assert rest == {"items": [second], "next": None}
    summary = api.get(f"/v1/studies/{study.id}").json()["summary"]
    assert summary["prediction_error_pct"]["max"] == 50.0
    assert summary["out_of_memory"] == {"attempts": 1, "least_excess_pct": pytest.approx(33.3, abs=0.1)}


def test_what_was_learned_is_told_by_family(api: InProcess) -> None:
    study = fill(api.store)
    waiting = api.store.trials(study.id)[2]
    queued = {"plan": Plan(8).to_json(), "predicted_bytes": 8 * 2**20, "reserved_mib": 9, "family": "f"}
    assert api.store.move_trial(waiting.id, TrialState.WAITING, 0, TrialState.QUEUED, now=1.0, **queued)
    assert api.store.begin_attempt(
        waiting.id, 1, token=SECRET, plan=queued["plan"], devices=("n/0",), device_kinds=("virtual",), mib_per_rank=9,
        predicted_bytes=8 * 2**20, placement_reason="", now=2.0,
    )  # fmt: skip
    assert api.store.report(waiting.id, 1, SECRET, measured_bytes=10 * 2**20, now=3.0)
    lesson = {"family": "f", "extra_bytes": 2 * 2**20, "bias_bytes": 0, "num_trials": 1,
              "num_out_of_memory": 0}  # fmt: skip
    assert api.get(f"/v1/studies/{study.id}/learned").json() == [lesson]
    assert api.get(f"/v1/studies/{study.id}").json()["summary"]["learned"] == [lesson]


def test_the_token_of_an_attempt_is_never_told(api: InProcess) -> None:
    study = fill(api.store)
    api.store.record_cluster({"status": "ready", "detail": "", "devices": [DEVICE]}, now=time.time())
    paths = ["", "/trials", "/trials/0", "/trials/1", "/trials/1/metrics", "/trials/1/logs", "/peaks"]
    paths = [f"/v1/studies/{study.id}{path}" for path in paths] + ["/v1/studies", "/v1/cluster", "/metrics"]
    for path in paths:
        answer = api.get(path)
        assert answer.status_code == 200 and SECRET not in answer.text
    assert SECRET not in str(api.store.events())


def test_metrics_come_by_step_in_pages_and_what_is_not_finite_is_null(api: InProcess) -> None:
    study = fill(api.store)
    running = api.store.trials(study.id)[1]
    rows = [Metric(running.id, 1, 0, 0, {"loss": math.nan}, 1.0), Metric(running.id, 1, 1, 5, {"loss": 0.5}, 2.0)]
    assert api.store.report(running.id, 1, SECRET, metrics=rows, now=3.0)
    first = api.get(f"/v1/studies/{study.id}/trials/1/metrics?limit=1").json()
    assert first["items"] == [{"step": 0, "attempt": 1, "values": {"loss": None}, "time": 1.0}]
    second = api.get(f"/v1/studies/{study.id}/trials/1/metrics?after={first['next']}").json()
    assert [row["step"] for row in second["items"]] == [5] and second["next"] is None


def test_logs_are_read_on_from_a_line_or_from_the_end(api: InProcess) -> None:
    study = fill(api.store)
    running = api.store.trials(study.id)[1]
    lines = [LogLine(running.id, 1, 0, seq, 1.0, f"line {seq}") for seq in range(5)]
    assert api.store.report(running.id, 1, SECRET, logs=lines, now=1.0)
    path = f"/v1/studies/{study.id}/trials/1/logs"
    first = api.get(f"{path}?limit=2").json()
    assert [line["text"] for line in first["items"]] == ["line 0", "line 1"]
    assert api.get(f"{path}?after={first['next']}").json()["items"][0]["text"] == "line 2"
    assert [line["text"] for line in api.get(f"{path}?after=-1&limit=2").json()["items"]] == ["line 3", "line 4"]


def test_a_study_is_stopped_once_and_stopping_it_again_changes_nothing(api: InProcess) -> None:
    study_id = api.submit().json()["id"]
    assert api.post(f"/v1/studies/{study_id}:stop").json()["state"] == "STOPPING"
    events = api.store.last_event_id()
    again = api.post(f"/v1/studies/{study_id}:stop")
    assert (again.status_code, again.json()["state"]) == (200, "STOPPING")
    assert api.store.last_event_id() == events


@pytest.mark.parametrize(
    "path",
    [
        "/v1/studies/1", "/v1/studies/0", "/v1/studies/x", "/v1/studies/99999999999999999999", "/v1/studies/1/trials",
        "/v1/studies/1/trials/0", "/v1/studies/1/trials/-1", "/v1/studies/1/trials/0/logs", "/v1/studies/1/peaks",
        "/v1/studies/1/learned", "/v1/nothing", "/studies/x",
        "/static/x/../../../etc/passwd", "/%00", "/v1/studies/%F0%9F%98%80",
    ],
)  # fmt: skip
def test_what_does_not_exist_is_a_404_that_says_what_to_do(api: InProcess, path: str) -> None:
    answer = api.get(path)
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"]


def test_stopping_an_unknown_study_is_a_404(api: InProcess) -> None:
    assert api.post("/v1/studies/1:stop").status_code == 404


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("limit=0", "limit"), ("limit=1001", "limit"), ("limit=x", "limit"), ("after=-5", "after"),
        ("after=99999999999999999999", "after"), ("state=SLEEPING", "WAITING"),
    ],
)  # fmt: skip
def test_a_wrong_parameter_is_named_with_what_is_allowed(api: InProcess, query: str, words: str) -> None:
    study = fill(api.store)
    answer = api.get(f"/v1/studies/{study.id}/trials?{query}")
    assert answer.status_code == 422
    assert words in answer.json()["detail"]


def test_a_wrong_method_is_a_405_that_tells_the_right_ones(api: InProcess) -> None:
    answer = api.request("DELETE", "/v1/studies")
    assert answer.status_code == 405
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["allow"]


# --- the cluster -----------------------------------------------------------------------------------------------


def test_the_cluster_is_starting_until_a_controller_reports(api: InProcess) -> None:
    view = api.get("/v1/cluster").json()
    assert (view["status"], view["controller_alive"], view["devices"]) == ("starting", False, [])


def test_the_cluster_shows_devices_filled_by_gangs_and_who_waits(api: InProcess) -> None:
    study = fill(api.store)
    now = time.time()
    api.store.acquire_lease("controller", "c", 10, now=now)
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
    api.store.acquire_lease("controller", "c", 10, now=long_ago)
    api.store.record_cluster({"status": "ready", "detail": "", "devices": [DEVICE]}, now=long_ago)
    view = api.get("/v1/cluster").json()
    assert (view["status"], view["controller_alive"]) == ("starting", False)
    assert view["controller_silent_seconds"] == pytest.approx(60, abs=5)
    assert "silent for 6" in view["detail"]


# --- the process -----------------------------------------------------------------------------------------------


def test_ready_needs_a_controller_that_holds_the_lease(api: InProcess) -> None:
    assert api.get("/healthz").json() == {"status": "ok"}
    answer = api.get("/readyz")
    assert (answer.status_code, answer.json()["controller"]) == (503, "no controller holds the lease")
    api.store.acquire_lease("controller", "c", 10, now=time.time() - 30)
    assert "silent for 30 s" in api.get("/readyz").json()["controller"]
    api.store.acquire_lease("controller", "c", 10, now=time.time())
    answer = api.get("/readyz")
    assert answer.status_code == 200
    assert answer.json() == {"status": "ready", "database": "ok", "controller": "ok"}


def test_a_database_that_cannot_be_read_is_told_by_ready_and_by_every_answer(
    api: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scamp_service.errors import Unavailable

    def broken(*_: Any, **__: Any) -> None:
        raise Unavailable("the database cannot be reached")

    for name in ("lease_age", "studies"):
        monkeypatch.setattr(api.store, name, broken)
    ready, studies = api.get("/readyz"), api.get("/v1/studies")
    assert (ready.status_code, ready.json()["database"]) == (503, "the database cannot be reached")
    assert (studies.status_code, studies.json()["detail"]) == (503, "the database cannot be reached")
    assert api.get("/healthz").status_code == 200
