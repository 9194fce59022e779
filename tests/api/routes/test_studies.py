"""Studies: submitted, listed, read and stopped, over a real database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from estimators.model import Plan
from scamp_service.exchange.imported import spec_of_others
from scamp_service.lifecycle import StudyState, TrialState
from scamp_service.model import Metric, Report, TrialChanges
from scamp_service.study.parse import parse_study
from tests.services.serving import SECRET, SPEC, InProcess, end, fill, full_spec, settings_in
from tests.values import new_attempt, sized


def test_a_study_is_created_at_its_location_with_all_defaults(api: InProcess) -> None:
    answer = api.submit()
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/v1/studies/{answer.json()['id']}"
    view = api.get(answer.headers["location"]).json()
    assert view["spec"] == answer.json()["spec"]
    assert view["spec"]["budget"]["trials"] == 20
    assert (view["state"], view["trials"], view["best"]) == ("RUNNING", {}, None)


def test_the_same_key_and_body_give_the_same_study(api: InProcess) -> None:
    first, again = (api.submit(**{"Idempotency-Key": "k"}) for _ in range(2))
    assert first.json()["id"] == again.json()["id"]
    assert len(api.get("/v1/studies").json()["items"]) == 1


def test_a_repeated_study_is_the_same_after_an_upgrade_that_changes_defaults(api: InProcess) -> None:
    study = parse_study(SPEC)
    other_default = {**study.to_json(), "budget": {**study.to_json()["budget"], "trials": 7}}
    api.store.studies.create(other_default, request=study.as_given(), idempotency_key="k", now=1.0)
    assert api.submit(**{"Idempotency-Key": "k"}).json()["id"] == 1
    assert api.submit({**SPEC, "budget": {"trials": 8}}, **{"Idempotency-Key": "k"}).status_code == 409
    assert len(api.get("/v1/studies").json()["items"]) == 1


def test_a_key_reused_for_another_study_is_a_conflict_that_stores_nothing(api: InProcess) -> None:
    api.submit(**{"Idempotency-Key": "k"})
    answer = api.submit({**SPEC, "name": "another"}, **{"Idempotency-Key": "k"})
    assert answer.status_code == 409
    assert "take a new key" in answer.json()["detail"]
    assert len(api.get("/v1/studies").json()["items"]) == 1


def test_a_study_shows_its_trials_by_state_its_best_and_its_summary(api: InProcess) -> None:
    study = fill(api.store)
    view = api.get(f"/v1/studies/{study.id}").json()
    assert view["trials"] == {"WAITING": 1, "RUNNING": 1, "COMPLETED": 1}
    assert view["best"] == {
        "trial": 0,
        "value": pytest.approx(0.53),
        "params": {"lr": 0.01},
        "plan": "1 rank, micro-batch 8",
    }
    assert view["device_seconds"] > 0
    assert view["summary"]["degrees"] == {"1": 2}
    assert view["summary"]["best_metrics"] == {"accuracy": pytest.approx(0.53)}
    listed = api.get("/v1/studies").json()["items"][0]
    assert {key: listed[key] for key in ("trials", "best")} == {key: view[key] for key in ("trials", "best")}


def test_an_evaluation_that_is_not_a_number_is_null_in_the_summary(api: InProcess) -> None:
    study = fill(api.store)
    running = api.store.trials.page(study.id)[1]
    row = Metric(running.id, 1, 0, 99, {"accuracy": 0.9, "loss": float("nan")}, 1.0)
    assert api.store.reports.add(Report(running.id, 1, SECRET, metrics=[row], objectives=["accuracy"]), now=3.0)
    end(api.store, running.id)
    assert api.get(f"/v1/studies/{study.id}").json()["summary"]["best_metrics"] == {"accuracy": 0.9, "loss": None}


def test_studies_are_listed_newest_first_when_asked(api: InProcess) -> None:
    ids = [api.submit().json()["id"] for _ in range(3)]
    first = api.get("/v1/studies?newest_first=true&limit=2").json()
    rest = api.get(f"/v1/studies?newest_first=true&limit=2&after={first['next']}").json()
    assert [study["id"] for study in (*first["items"], *rest["items"])] == ids[::-1]


def test_what_was_learned_is_shown_by_family(api: InProcess) -> None:
    study = fill(api.store)
    waiting = api.store.trials.page(study.id)[2]
    queued: dict[str, Any] = {"sized": sized(Plan(8), 9, 8 * 2**20), "changes": TrialChanges(family="f")}
    assert api.store.trials.move(waiting.id, TrialState.WAITING, 0, TrialState.QUEUED, now=1.0, **queued)
    assert api.store.attempts.begin(
        new_attempt(waiting.id, token=SECRET, device_kinds=("virtual",), reserved_mib=9, predicted_bytes=8 * 2**20)
    )
    assert api.store.reports.add(Report(waiting.id, 1, SECRET, measured_bytes=10 * 2**20), now=3.0)
    learned = {"family": "f", "layout": "single", "extra_bytes": 2 * 2**20, "bias_bytes": 0, "num_trials": 1,
              "num_out_of_memory": 0, "num_halvings": 0, "studies": [study.id]}  # fmt: skip
    assert api.get(f"/v1/studies/{study.id}/learned").json() == [learned]
    assert api.get(f"/v1/studies/{study.id}").json()["summary"]["learned"] == [learned]


def test_a_study_is_stopped_once_and_stopping_it_again_changes_nothing(api: InProcess) -> None:
    study_id = api.submit().json()["id"]
    assert api.post(f"/v1/studies/{study_id}:stop").json()["state"] == "STOPPING"
    events = api.store.events.last_id()
    again = api.post(f"/v1/studies/{study_id}:stop")
    assert (again.status_code, again.json()["state"]) == (200, "STOPPING")
    assert api.store.events.last_id() == events


def test_stopping_an_unknown_study_is_a_404(api: InProcess) -> None:
    assert api.post("/v1/studies/1:stop").status_code == 404


def test_a_completed_study_without_a_completed_trial_says_so_and_stays_completed(api: InProcess) -> None:
    study = fill(api.store)
    succeeded = api.get(f"/v1/studies/{study.id}").json()
    assert (succeeded["state_text"], succeeded["no_success"]) == ("Running", False)
    failed = api.store.studies.create(study.spec, now=1.0)
    api.store.trials.create(failed.id, [(0, {"lr": 0.01})], now=1.0)
    (trial,) = api.store.trials.page(failed.id)
    assert api.store.trials.move(trial.id, TrialState.WAITING, 0, TrialState.INFEASIBLE, now=2.0)
    assert api.store.studies.move(failed.id, [StudyState.RUNNING], StudyState.COMPLETED, now=3.0)
    detail, listed = api.get(f"/v1/studies/{failed.id}").json(), api.get("/v1/studies").json()["items"][-1]
    for view in (detail, listed, detail["summary"]):
        shown = view["state"], view["state_text"], view["no_success"]
        assert shown == ("COMPLETED", "Completed, no trial succeeded", True)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/studies?limt=3", "no query parameter 'limt'; it knows after, archived, limit, live, newest_first, owner"),
        ("/v1/studies/1?verbose=1", "no query parameter 'verbose'; it has none"),
        ("/v1/studies/1/trials?states=FAILED", "no query parameter 'states'; it knows after, limit, number, state"),
        ("/v1/events?study=1", "no query parameter 'study'; it knows after, study_id"),
        ("/v1/cluster?a=1&b=2", "no query parameter 'a'"),
    ],
)
def test_a_query_parameter_that_is_not_known_is_refused(api: InProcess, path: str, words: str) -> None:
    answer = api.get(path)
    assert answer.status_code == 400 and words in answer.json()["detail"]


def test_a_probe_may_add_what_it_likes_to_the_address_of_a_health_check(api: InProcess) -> None:
    assert api.get("/healthz?now=1").status_code == 200


def test_an_ended_study_is_deleted_and_a_repeated_request_gets_the_same_answer(api: InProcess) -> None:
    assert api.request("DELETE", "/v1/studies/1").status_code == 404
    api.submit()
    refused = api.request("DELETE", "/v1/studies/1")
    assert refused.status_code == 409 and "/v1/studies/1:stop" in refused.json()["detail"]
    assert api.store.studies.move(1, [StudyState.RUNNING], StudyState.COMPLETED, now=2.0)
    for _ in range(2):
        answer = api.request("DELETE", "/v1/studies/1")
        assert (answer.status_code, answer.content) == (204, b"")
    for path in ("", "/trials", "/history", "/trials/0"):
        assert api.get(f"/v1/studies/1{path}").status_code == 404
    assert api.get("/v1/studies").json()["items"] == []


def test_candidates_are_enqueued_with_the_parameters_that_are_left_out(api: InProcess) -> None:
    study_id = api.submit().json()["id"]
    body = {"candidates": [{"lr": 0.05}, {}]}
    answers = [api.post(f"/v1/studies/{study_id}/trials", json=body, headers={"Idempotency-Key": "k"}) for _ in "12"]
    assert [(answer.status_code, answer.json()) for answer in answers] == [(201, {"numbers": [0, 1]})] * 2
    first, second = api.get(f"/v1/studies/{study_id}/trials").json()["items"]
    assert (first["params"], first["origin"]) == ({"lr": 0.05}, "ENQUEUED")
    assert 0.001 <= second["params"]["lr"] <= 0.1
    wrong = api.post(f"/v1/studies/{study_id}/trials", json={"candidates": [{"lr": 7}]})
    assert wrong.status_code == 422 and "the candidate is not valid: lr: 7 is not bet" in wrong.json()["detail"]
    assert api.post("/v1/studies/99/trials", json=body).status_code == 404


def test_a_study_knows_where_it_comes_from(api: InProcess) -> None:
    headers = {"Scamp-Provenance": json.dumps({"command": "scamp submit a.yaml", "commit": "0" * 40})}
    body = {"spec": full_spec()}
    study_id = api.post("/v1/studies", json=body, headers=headers).json()["id"]
    source = api.get(f"/v1/studies/{study_id}/provenance").json()
    assert (source["command"], source["commit"], source["is_changed"]) == ("scamp submit a.yaml", "0" * 40, None)
    assert source["packages"]["python"] and source["packages"]["torch"]
    headers = {"Scamp-Provenance": json.dumps({"command": "scamp clone 1"})}
    clone = api.post(f"/v1/studies/{study_id}:clone", json={}, headers=headers).json()
    cloned = api.get(f"/v1/studies/{clone['id']}/provenance").json()
    assert cloned == source | {"command": "scamp clone 1"}, "its files are those of the original"
    other = api.post("/v1/studies", json=body, headers={"Scamp-Provenance": "no JSON"})
    assert other.status_code == 422 and "Scamp-Provenance" in other.json()["detail"]
    assert api.get("/v1/studies/99/provenance").status_code == 404


def test_a_result_that_was_measured_elsewhere_is_a_completed_trial(api: InProcess) -> None:
    study_id = api.submit().json()["id"]
    path = f"/v1/studies/{study_id}/trials"
    api.store.studies.move(study_id, [StudyState.RUNNING], StudyState.COMPLETED, now=2.0)
    added = api.post(path, json={"candidates": [{"lr": 0.05}, {"lr": 0.06}], "values": [0.9, [0.8]]})
    assert added.json() == {"numbers": [0, 1]}
    first, second = api.get(path).json()["items"]
    assert (first["state"], first["value"], first["origin"]) == ("COMPLETED", 0.9, "ENQUEUED")
    assert second["value"] == 0.8 and second["finished_at"]
    study = api.get(f"/v1/studies/{study_id}").json()
    assert (study["state"], study["best"]["value"], study["trials"]) == ("COMPLETED", 0.9, {"COMPLETED": 2})
    for candidates, values, words in (
        ([{"lr": 0.05}], [0.9, 0.8], "1 candidates and 2 values"),
        ([{}], [0.9], "needs all parameters of its candidate; add lr"),
        ([{"lr": 0.05}], [[0.9, 0.8]], "a finite number for each of accuracy"),
    ):
        refused = api.post(path, json={"candidates": candidates, "values": values})
        assert refused.status_code == 422 and words in refused.json()["detail"], refused.json()


def test_a_completed_study_takes_candidates_and_a_stopped_one_refuses_them(api: InProcess) -> None:
    completed, stopped = (api.submit().json()["id"] for _ in "12")
    api.store.studies.move(completed, [StudyState.RUNNING], StudyState.COMPLETED, now=2.0)
    api.store.studies.move(stopped, [StudyState.RUNNING], StudyState.STOPPING, now=2.0)
    body: Any = {"candidates": [{}]}
    assert api.post(f"/v1/studies/{completed}/trials", json=body).json() == {"numbers": [0]}
    (trial,) = api.get(f"/v1/studies/{completed}/trials").json()["items"]
    assert 0.001 <= trial["params"]["lr"] <= 0.1
    assert api.get(f"/v1/studies/{completed}").json()["state"] == "RUNNING"
    refused = api.post(f"/v1/studies/{stopped}/trials", json=body)
    assert refused.status_code == 409 and "clone it" in refused.json()["detail"]


def test_limits_of_a_study_are_added_replaced_and_dropped(api: InProcess) -> None:
    address = f"/v1/studies/{api.submit().json()['id']}"
    limits = {"seconds": 1e6, "target": 0.99, "max_concurrent": 2}
    budget = api.post(f"{address}:extend", json=limits).json()["spec"]["budget"]
    assert (budget["seconds"], budget["target"], budget["max_concurrent"]) == (1e6, 0.99, 2)
    for _ in "12":
        answer = api.post(f"{address}:extend", json={"drop": ["seconds", "target"]})
        budget = answer.json()["spec"]["budget"]
        assert (budget["seconds"], budget["target"], budget["max_concurrent"]) == (None, None, 2)
    api.store.studies.note_ran({1: 60.0})
    refused = api.post(f"{address}:extend", json={"seconds": 60})
    assert refused.status_code == 409 and "would end at once" in refused.json()["detail"]
    assert api.post(f"{address}:extend", json={"drop": ["trials"]}).status_code == 422


def test_a_study_has_another_priority_up_to_that_of_its_project(tmp_path: Path) -> None:
    api = InProcess(settings_in(tmp_path, max_priority=5))
    address = f"/v1/studies/{api.submit().json()['id']}"
    assert api.post(f"{address}:prioritize", json={"priority": 5}).json()["spec"]["priority"] == 5
    refused = api.post(f"{address}:prioritize", json={"priority": 6})
    assert refused.status_code == 422 and "at most 5" in refused.json()["detail"]
    assert api.post("/v1/studies/99:prioritize", json={"priority": 5}).status_code == 404
    api.close()


def test_a_study_is_paused_and_resumed_and_a_clone_of_it_runs(api: InProcess) -> None:
    address = f"/v1/studies/{api.submit().json()['id']}"
    paused = api.post(f"{address}:pause").json()
    shown = paused, api.get("/v1/studies?live=true").json()["items"][0], api.get(address).json()["summary"]
    assert [(view["state"], view["state_text"]) for view in shown] == [("PAUSED", "Paused")] * 3
    assert paused["spec"]["paused"] and api.store.events.page()[-1].data["state"] == "PAUSED"
    metrics = api.get("/metrics").text
    assert 'scamp_studies{state="PAUSED"} 1.0' in metrics and 'scamp_studies{state="RUNNING"} 0.0' in metrics
    refused = api.request("DELETE", address)
    assert refused.status_code == 409 and "is PAUSED: stop it" in refused.json()["detail"]
    clone = api.post(f"{address}:clone", json={}).json()
    resumed = api.post(f"{address}:resume").json()
    assert [(answer["state"], answer["spec"]["paused"]) for answer in (clone, resumed)] == [("RUNNING", False)] * 2
    api.post(f"{address}:stop")
    refused = api.post(f"{address}:pause")
    assert refused.status_code == 409
    assert "only a running study can be paused" in refused.json()["detail"]


def test_a_study_is_read_as_a_file_that_gives_the_same_study(api: InProcess) -> None:
    spec = {
        **SPEC,
        "name": "größer: 1",
        "search": {"sampler": {"name": "tpe", "multivariate": True}},
        "stopping": [{"rule": "asha", "min_steps": 5}, {"rule": "patience", "reports": 3}],
        "budget": {"trials": 3, "steps": 20},
        "paused": True,
    }
    study = api.submit(spec).json()
    file = api.get(f"/v1/studies/{study['id']}/study.yaml")
    assert file.headers["content-type"].startswith("application/yaml") and "constant_liar" not in file.text
    assert parse_study(file.text).to_json() == {**study["spec"], "paused": False}
    assert api.get("/v1/studies/99/study.yaml").status_code == 404


def test_failed_trials_are_retried(api: InProcess) -> None:
    study_id = api.submit().json()["id"]
    api.store.trials.create(study_id, [(number, {}) for number in range(3)], now=1.0)
    for trial in api.store.trials.page(study_id):
        assert api.store.trials.move(trial.id, TrialState.WAITING, 0, TrialState.FAILED, now=2.0)
    retry = f"/v1/studies/{study_id}:retry"
    assert api.post(retry, json={"numbers": [1]}).json() == {"numbers": [1]}
    assert api.get(f"/v1/studies/{study_id}/trials/1").json()["state"] == "WAITING"
    assert api.post(retry, json={}).json() == {"numbers": [0, 2]}
    assert api.post(retry, json={}).json() == {"numbers": []}
    assert api.post(retry, json={"numbers": [9]}).status_code == 404
    assert api.post(retry, json={"number": [1]}).status_code == 422
    api.post(f"/v1/studies/{study_id}:stop")
    assert api.store.trials.move(trial.id, TrialState.WAITING, 0, TrialState.FAILED, now=3.0)
    assert api.post(retry, json={}).status_code == 409


def test_a_study_is_extended_and_cloned(api: InProcess) -> None:
    study_id = api.submit().json()["id"]
    why = "trial 0 has reached the target of 0.5, with 0.6"
    api.store.studies.move(study_id, [StudyState.RUNNING], StudyState.COMPLETED, reason=why, now=2.0)
    extended = api.post(f"/v1/studies/{study_id}:extend", json={"trials": 30})
    assert (extended.json()["state"], extended.json()["spec"]["budget"]["trials"]) == ("RUNNING", 30)
    assert api.post(f"/v1/studies/{study_id}:extend", json={"trial": 30}).status_code == 422
    assert api.post(f"/v1/studies/{study_id}:extend", json={"trials": 3}).status_code == 422
    clones = [
        api.post(f"/v1/studies/{study_id}:clone", json={"name": "again"}, headers={"Idempotency-Key": "c"})
        for _ in "12"
    ]
    assert {clone.json()["id"] for clone in clones} == {study_id + 1}
    assert clones[0].json()["spec"] == {**extended.json()["spec"], "name": "again"}
    foreign = api.store.external.create_study("foreign", spec_of_others("foreign", ["minimize"]), now=3.0)
    refused = api.post(f"/v1/studies/{foreign}:clone", json={})
    assert refused.status_code == 409 and "was run by other programs" in refused.json()["detail"]
