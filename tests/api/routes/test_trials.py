"""Trials with their peaks, metrics and logs, in pages, over a real database; and addresses that are wrong."""

from __future__ import annotations

import csv
import io
import json
import math
import time
from dataclasses import replace

import pytest
from pyarrow import parquet

from estimators.model import MIB, Plan, Prediction
from placement.option import Option
from placement.pipelining.timeline import PassTime, PipelineStep, StageStep
from scamp_service.lifecycle import Outcome, TrialState, WaitsFor
from scamp_service.model import LogLine, Metric, RecordedPipeline, Report, TrialChanges
from scamp_service.store.recorded_cluster import RecordedCluster
from tests.services.serving import DEVICE, SECRET, InProcess, fill
from tests.values import changed, new_attempt, sized


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


def test_a_trial_is_addressed_by_its_number_and_comes_with_its_attempts(api: InProcess) -> None:
    fill(api.store)
    study = fill(api.store)  # ids and numbers differ here
    trial = api.get(f"/v1/studies/{study.id}/trials/0").json()
    assert (trial["number"], trial["study_id"], trial["state"]) == (0, study.id, "COMPLETED")
    assert (trial["plan_text"], trial["num_ranks"]) == ("1 rank, micro-batch 8", 1)
    [attempt] = trial["attempts"]
    assert (attempt["state"], attempt["outcome"], attempt["devices"]) == ("ENDED", "DONE", ["n/0"])
    assert attempt["placement_reason"] == "first free device"


def test_a_trial_comes_with_the_plans_that_were_compared_for_it(api: InProcess) -> None:
    study = fill(api.store, num_trials=4)
    waiting = api.store.trials.page(study.id)[2]
    path = f"/v1/studies/{study.id}/trials/2"
    assert api.get(path).json()["options"] == []
    option = Option(Plan(8), Prediction(24 * MIB), 96, communication_share=0.0, relative_device_seconds=1.0)
    shown = {
        "plan": json.loads(json.dumps(Plan(8).to_json())), "plan_text": "1 rank, micro-batch 8", "num_ranks": 1,
        "chosen": True, "fits": True,
        "reserved_mib": 24, "offered_mib": 96, "at_least": False, "traced": True, "evidence": "traced",
        "seconds": None,
        "communication_share": 0.0, "relative_device_seconds": 1.0,
    }  # fmt: skip
    sized_trial = replace(sized(), options=(option,))
    assert api.store.trials.move(waiting.id, waiting.state, 0, TrialState.QUEUED, now=1.0, sized=sized_trial)
    assert api.get(path).json()["options"] == [shown]
    assert "options" not in api.get(f"/v1/studies/{study.id}/trials").json()["items"][2]


def test_a_trial_says_how_often_a_fault_of_its_host_has_ended_it(api: InProcess) -> None:
    study = fill(api.store, num_trials=4)
    running = api.store.trials.page(study.id)[1]
    reason, changes = "waits 10 s after: No space left on device", TrialChanges(num_faults=2, retry_at=9.0)
    move = (running.id, TrialState.RUNNING, 1, TrialState.QUEUED)
    assert api.store.trials.move(*move, now=1.0, reason=reason, changes=changes, waits_for=WaitsFor.RETRY)
    listed = api.get(f"/v1/studies/{study.id}/trials").json()["items"]
    assert [trial["num_faults"] for trial in listed] == [0, 2, 0, 0]
    assert [trial["waits_for"] for trial in listed] == [None, "RETRY", "PLAN", "PLAN"]
    assert api.get(f"/v1/studies/{study.id}/trials/1").json()["num_faults"] == 2


def test_a_trial_with_a_pipeline_has_the_timeline_of_a_step(api: InProcess) -> None:
    study = fill(api.store, num_trials=4)
    waiting = api.store.trials.page(study.id)[2]
    path = f"/v1/studies/{study.id}/trials/2/timeline"
    answer = api.get(path)
    assert (answer.status_code, answer.json()) == (200, None)
    first = StageStep(PassTime(1.0, sending_seconds=0.5), PassTime(2.0), 0.25, 100, 10, 1)
    last = StageStep(PassTime(1.0), PassTime(2.0, sending_seconds=0.5), 0.25, 100, 10, 1)
    step = PipelineStep(Plan(1, 3, pp=2, dp_shard=2), (first, last), cores=2.0)
    pipeline = RecordedPipeline(step, "s", communicates=True, offered_mib=96)
    sized_trial = replace(sized(step.plan), pipeline=pipeline)
    assert api.store.trials.move(waiting.id, waiting.state, 0, TrialState.QUEUED, now=1.0, sized=sized_trial)
    shown = api.get(path).json()
    assert (shown["unit"], shown["makespan"], shown["num_micro_batches"]) == ("s", step.seconds, 3)
    assert (shown["cores"], shown["offered_bytes"]) == (2.0, 96 * 2**20)
    timeline = step.timeline()
    assert shown["bubble_share"] == timeline.bubble_share and shown["communication_share"] > 0
    row = shown["rows"][0]
    assert (row["stage"], row["ranks"], row["peak_bytes"]) == (0, [0, 2], 121)
    assert row["passes"][0] == {
        "kind": "forward",
        "micro_batch": 0,
        "start": 0.0,
        "end": 1.5,
        "communicating_from": 1.0,
    }
    assert (row["passes"][-1]["kind"], row["passes"][-1]["micro_batch"]) == ("update", None)
    assert row["memory"][0] == [0.0, 111] and row["memory"][-1][1] == 100
    assert row["waits"] == [list(wait) for wait in timeline.waits(timeline.rows[0])] != []
    assert shown["messages"][0] == {"sender": 0, "receiver": 1, "micro_batch": 0, "start": 1.0, "end": 1.5}
    again = replace(sized(), pipeline=None)
    assert api.store.trials.move(waiting.id, TrialState.QUEUED, 0, TrialState.QUEUED, now=2.0, sized=again)
    assert api.get(path).json() is None, "the new plan has no pipeline"


def test_a_timeline_says_what_is_not_known_of_its_devices(api: InProcess) -> None:
    study = fill(api.store, num_trials=4)
    waiting = api.store.trials.page(study.id)[2]
    stage = StageStep(PassTime(1e9), PassTime(2e9), 0.0)
    step = PipelineStep(Plan(1, 2, pp=2), (stage, stage), cores=8.0)
    pipeline = RecordedPipeline(step, "FLOP", communicates=False, offered_mib=None)
    sized_trial = replace(sized(step.plan), pipeline=pipeline)
    assert api.store.trials.move(waiting.id, waiting.state, 0, TrialState.QUEUED, now=1.0, sized=sized_trial)
    shown = api.get(f"/v1/studies/{study.id}/trials/2/timeline").json()
    names = ("unit", "communication_share", "offered_bytes", "cores")
    assert [shown[name] for name in names] == ["FLOP", None, None, None]


def test_peaks_are_shown_by_attempt_and_an_out_of_memory_is_a_lower_bound(api: InProcess) -> None:
    fill(api.store)
    study = fill(api.store)
    running = api.store.trials.page(study.id)[1]
    assert api.store.reports.end(running.id, 1, SECRET, Outcome.OUT_OF_MEMORY, "", now=1.0)
    assert api.store.trials.move(
        running.id, TrialState.RUNNING, 1, TrialState.WAITING, now=2.0, changes=TrialChanges(num_oom=1)
    )
    path = f"/v1/studies/{study.id}/peaks"
    peak = {
        "attempt": 1,
        "predicted_bytes": 3 * 2**20,
        "reserved_mib": 4,
        "predicted_step_seconds": None,
        "measured_step_seconds": None,
    }
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


def test_trials_attempts_and_peaks_have_step_times(api: InProcess) -> None:
    study = fill(api.store, num_trials=4)
    waiting = api.store.trials.page(study.id)[2]
    path = f"/v1/studies/{study.id}/trials/2"
    sized_trial = changed(sized(), step_seconds=0.3, step_factor=1.5)
    assert api.store.trials.move(waiting.id, waiting.state, 0, TrialState.QUEUED, now=1.0, sized=sized_trial)
    trial = api.get(path).json()
    names = ("predicted_step_seconds", "step_factor", "measured_step_seconds")
    assert [trial[name] for name in names] == [0.3, 1.5, None]
    attempt = changed(new_attempt(waiting.id, token=SECRET), step_seconds=0.3, step_factor=1.5)
    assert api.store.attempts.begin(attempt)
    assert api.store.reports.add(
        Report(waiting.id, 1, SECRET, measured_bytes=9, step_seconds=0.4, timed_steps=7), now=3.0
    )
    trial = api.get(path).json()
    for shown in (trial, trial["attempts"][0]):
        assert [shown[name] for name in names] == [0.3, 1.5, 0.4]
    assert trial["attempts"][0]["timed_steps"] == 7
    peaks = {item["number"]: item["attempts"][0] for item in api.get(f"/v1/studies/{study.id}/peaks").json()["items"]}
    assert [peaks[2][name] for name in names[::2]] == [0.3, 0.4]
    assert api.get(f"/v1/studies/{study.id}").json()["summary"]["step_error_pct"] == {
        "median": pytest.approx(25.0),
        "max": pytest.approx(25.0),
    }


def test_the_token_of_an_attempt_is_never_shown(api: InProcess) -> None:
    study = fill(api.store)
    api.store.cluster.record(RecordedCluster("ready", "", (DEVICE,)), now=time.time())
    paths = ["", "/trials", "/trials/0", "/trials/1", "/trials/1/metrics", "/trials/1/logs", "/peaks"]
    paths = [f"/v1/studies/{study.id}{path}" for path in paths] + ["/v1/studies", "/v1/cluster", "/metrics"]
    for path in paths:
        answer = api.get(path)
        assert answer.status_code == 200 and SECRET not in answer.text
    assert SECRET not in str(api.store.events.page())


def test_metrics_come_by_step_in_pages_and_what_is_not_finite_is_null(api: InProcess) -> None:
    study = fill(api.store)
    running = api.store.trials.page(study.id)[1]
    rows = [Metric(running.id, 1, 0, 0, {"loss": math.nan}, 1.0), Metric(running.id, 1, 1, 5, {"loss": 0.5}, 2.0)]
    assert api.store.reports.add(Report(running.id, 1, SECRET, metrics=rows), now=3.0)
    first = api.get(f"/v1/studies/{study.id}/trials/1/metrics?limit=1").json()
    assert first["items"] == [{"step": 0, "attempt": 1, "values": {"loss": None}, "time": 1.0}]
    second = api.get(f"/v1/studies/{study.id}/trials/1/metrics?after={first['next']}").json()
    assert [row["step"] for row in second["items"]] == [5] and second["next"] is None


def test_names_of_metrics_that_older_versions_stored_break_no_answer(api: InProcess) -> None:
    study = fill(api.store)
    running = api.store.trials.page(study.id)[1]
    values = {"half \ud800": 0.5, "nul \0": 0.25, "🙂": 1.0, "": 2.0, "new\nline": 3.0, "x" * 10_000: 4.0}
    values["accuracy"] = 0.5
    row = Metric(running.id, 1, 0, 5, values, 1.0)
    assert api.store.reports.add(Report(running.id, 1, SECRET, metrics=[row], objectives=["accuracy"]), now=3.0)
    names = {"half ?", *values} - {"half \ud800"}
    assert api.get(f"/v1/studies/{study.id}/trials/1/metrics").json()["items"][0]["values"].keys() == names
    curves = api.get(f"/v1/studies/{study.id}/curves?number=1")
    assert curves.status_code == 200 and "half ?" in curves.text
    table = api.get(f"/v1/studies/{study.id}/trials.csv")
    assert table.status_code == 200 and "half ?" in table.text
    assert any("half ?" in event.data.get("values", {}) for event in api.store.events.page())


def test_logs_are_read_on_from_a_line_or_from_the_end(api: InProcess) -> None:
    study = fill(api.store)
    running = api.store.trials.page(study.id)[1]
    lines = [LogLine(running.id, 1, 0, seq, 1.0, f"line {seq}") for seq in range(5)]
    assert api.store.reports.add(Report(running.id, 1, SECRET, logs=lines), now=1.0)
    path = f"/v1/studies/{study.id}/trials/1/logs"
    first = api.get(f"{path}?limit=2").json()
    assert [line["text"] for line in first["items"]] == ["line 0", "line 1"]
    assert api.get(f"{path}?after={first['next']}").json()["items"][0]["text"] == "line 2"
    assert [line["text"] for line in api.get(f"{path}?after=-1&limit=2").json()["items"]] == ["line 3", "line 4"]
    hits = api.get(path, params={"search": "INE 1", "limit": 1}).json()
    assert [line["text"] for line in hits["items"]] == ["line 1"]
    assert api.get(path, params={"search": "%"}).json()["items"] == []


@pytest.mark.parametrize(
    "path",
    [
        "/v1/studies/1", "/v1/studies/0", "/v1/studies/x", "/v1/studies/99999999999999999999", "/v1/studies/1/trials",
        "/v1/studies/1/trials/0", "/v1/studies/1/trials/-1", "/v1/studies/1/trials/0/logs", "/v1/studies/1/peaks",
        "/v1/studies/1/trials/0/timeline",
        "/v1/studies/1/learned", "/v1/nothing", "/studies/x",
        "/static/x/../../../etc/passwd", "/%00", "/v1/studies/%F0%9F%98%80",
    ],
)  # fmt: skip
def test_what_does_not_exist_is_a_404_that_says_what_to_do(api: InProcess, path: str) -> None:
    answer = api.get(path)
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("after=-5", "after"),
        ("after=99999999999999999999", "after"),
        ("state=SLEEPING", "WAITING"),
    ],
)
def test_a_wrong_parameter_is_named_with_what_is_allowed(api: InProcess, query: str, words: str) -> None:
    study = fill(api.store)
    answer = api.get(f"/v1/studies/{study.id}/trials?{query}")
    assert answer.status_code == 422
    assert words in answer.json()["detail"]


def test_a_wrong_method_is_a_405_that_names_the_right_ones(api: InProcess) -> None:
    answer = api.request("DELETE", "/v1/studies")
    assert answer.status_code == 405
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["allow"]


def test_the_prediction_that_compares_with_the_measured_peak_is_one_number_everywhere(api: InProcess) -> None:
    study = fill(api.store)
    waiting = api.store.trials.page(study.id)[2]
    planned = sized(Plan(2, 4, tp=2, pp=2), 54, 50 * 2**20, extra_bytes=30 * 2**20, bias_bytes=5 * 2**20)
    assert api.store.trials.move(waiting.id, TrialState.WAITING, 0, TrialState.QUEUED, now=1.0, sized=planned)
    begun = new_attempt(waiting.id, token=SECRET, plan=planned.plan, devices=("n/0", "n/1", "n/2", "n/3"), now=2.0)
    assert api.store.attempts.begin(changed(begun, prediction=planned.prediction))
    assert api.store.reports.add(Report(waiting.id, 1, SECRET, measured_bytes=25 * 2**20), now=3.0)
    trial = api.get(f"/v1/studies/{study.id}/trials/2").json()
    [attempt] = trial["attempts"]
    *_, peaks = api.get(f"/v1/studies/{study.id}/peaks").json()["items"]
    assert trial["expected_bytes"] == attempt["expected_bytes"] == peaks["attempts"][0]["predicted_bytes"] == 25 * 2**20
    assert (trial["num_ranks"], trial["batch"], trial["plan_short"]) == (4, 8, "TP ×2 · PP ×2")
    assert (attempt["num_ranks"], attempt["plan_short"]) == (4, "TP ×2 · PP ×2")
    assert api.get(f"/v1/studies/{study.id}/trials/1").json()["batch"] == 8
    no_plan = api.get(f"/v1/studies/{fill(api.store).id}/trials/2").json()
    assert (no_plan["num_ranks"], no_plan["batch"], no_plan["plan_short"]) == (0, 0, "")


def test_a_trial_is_healed_when_it_has_completed_after_an_out_of_memory(api: InProcess) -> None:
    study = fill(api.store)
    running = api.store.trials.page(study.id)[1]
    path = f"/v1/studies/{study.id}"
    for state, attempt, to in [
        (TrialState.RUNNING, 1, TrialState.QUEUED),
        (TrialState.QUEUED, 1, TrialState.RUNNING),
        (TrialState.RUNNING, 1, TrialState.COMPLETED),
    ]:
        assert api.store.trials.move(running.id, state, attempt, to, now=2.0, changes=TrialChanges(num_oom=1))
        healed = api.get(f"{path}/trials/1").json()["healed"], api.get(path).json()["summary"]["healed"]
        assert healed == (to is TrialState.COMPLETED, int(to is TrialState.COMPLETED))


def test_the_table_is_downloaded_as_csv_in_its_order_and_with_its_filter(api: InProcess) -> None:
    fill(api.store)
    answer = api.get("/v1/studies/1/trials.csv", params={"by": "params.lr", "descending": True, "where": "lr > 0.015"})
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.headers["content-disposition"] == 'attachment; filename="study-1.csv"'
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [(row["number"], row["params.lr"]) for row in rows] == [("2", "0.03"), ("1", "0.02")]
    (best,) = csv.DictReader(io.StringIO(api.get("/v1/studies/1/trials.csv", params={"where": "lr < 0.015"}).text))
    assert list(best)[:5] == ["number", "state", "value", "params.lr", "metrics.accuracy"]
    assert best["metrics.accuracy"] == "0.53"
    assert api.get("/v1/studies/1/trials.csv", params={"where": "wrong <"}).status_code == 422
    assert api.get("/v1/studies/9/trials.csv").status_code == 404


def test_the_table_is_downloaded_as_json_lines_and_parquet(api: InProcess) -> None:
    study = fill(api.store)
    running = api.store.trials.page(study.id)[1]
    row = Metric(running.id, 1, 0, 5, {"accuracy": math.inf}, 1.0)
    assert api.store.reports.add(Report(running.id, 1, SECRET, metrics=[row], objectives=["accuracy"]), now=3.0)
    lines = api.get(f"/v1/studies/{study.id}/trials.jsonl").text.splitlines()
    assert [json.loads(line) for line in lines] == api.get(f"/v1/studies/{study.id}/trials").json()["items"]
    answer = api.get(f"/v1/studies/{study.id}/trials.parquet")
    assert answer.headers["content-disposition"] == 'attachment; filename="study-1.parquet"'
    rows = parquet.read_table(io.BytesIO(answer.content)).to_pylist()
    assert [(row["value"], row["params.lr"]) for row in rows] == [(0.53, 0.01), (math.inf, 0.02), (None, 0.03)]
    assert list(rows[0]) == next(csv.reader(io.StringIO(api.get(f"/v1/studies/{study.id}/trials.csv").text)))
    none = api.get(f"/v1/studies/{study.id}/trials.parquet", params={"where": "lr > 9"})
    assert parquet.read_table(io.BytesIO(none.content)).num_rows == 0
    assert api.get(f"/v1/studies/{study.id}/trials.xls").status_code == 404


def test_trials_have_the_metrics_that_they_count_by(api: InProcess) -> None:
    fill(api.store)
    listed = api.get("/v1/studies/1/trials").json()["items"]
    assert [trial["metrics"] for trial in listed] == [{"accuracy": 0.53}, {}, {}]
    assert api.get("/v1/studies/1/trials/0").json()["metrics"] == {"accuracy": 0.53}
    numbered = api.get("/v1/studies/1/trials", params={"number": 0}).json()["items"]
    assert numbered[0]["metrics"] == {"accuracy": 0.53}


def test_a_value_that_is_infinite_is_in_the_csv(api: InProcess) -> None:
    study = fill(api.store)
    running = api.store.trials.page(study.id)[1]
    row = Metric(running.id, 1, 0, 5, {"accuracy": math.inf}, 1.0)
    assert api.store.reports.add(Report(running.id, 1, SECRET, metrics=[row], objectives=["accuracy"]), now=3.0)
    rows = list(csv.DictReader(io.StringIO(api.get(f"/v1/studies/{study.id}/trials.csv").text)))
    assert [row["value"] for row in rows] == ["0.53", "inf", ""]
    assert api.get(f"/v1/studies/{study.id}/trials/1").json()["value"] is None


@pytest.mark.parametrize("number", ["1_0", "+1", "1.0", "%201", "1e1", "٣"])
def test_numbers_in_addresses_are_digits_alone(api: InProcess, number: str) -> None:
    fill(api.store)
    for path in (f"/v1/studies/{number}", f"/v1/studies/1/trials/{number}"):
        assert api.get(path).status_code == 404
    for query in ("limit", "after", "number"):
        assert api.get(f"/v1/studies/1/trials?{query}={number.replace('+', '%2B')}").status_code == 422


def test_a_trial_that_runs_is_stopped_and_one_that_has_ended_stays(api: InProcess) -> None:
    study = fill(api.store)
    stopped = api.post(f"/v1/studies/{study.id}/trials/1:stop").json()
    assert (stopped["state"], stopped["reason"]) == ("CANCELLED", "stopped by the user")
    assert api.post(f"/v1/studies/{study.id}/trials/0:stop").json()["state"] == "COMPLETED"
    assert api.post(f"/v1/studies/{study.id}/trials/99:stop").status_code == 404


def test_a_trial_is_paused_prioritized_and_once_it_has_ended_deleted(api: InProcess) -> None:
    study = fill(api.store)
    path = f"/v1/studies/{study.id}/trials"
    changed = api.request("PATCH", f"{path}/1", json={"paused": True, "priority": 5}).json()
    assert (changed["paused"], changed["priority"], changed["state"]) == (True, 5, "RUNNING")
    assert api.request("PATCH", f"{path}/0", json={"paused": True}).status_code == 409
    assert api.request("PATCH", f"{path}/1", json={"state": "COMPLETED"}).status_code == 422
    assert api.request("DELETE", f"{path}/1").status_code == 409
    assert [api.request("DELETE", f"{path}/0").status_code for _ in range(2)] == [204, 204]
    assert api.get(f"{path}/0").status_code == api.request("DELETE", f"{path}/99").status_code == 404
    assert [trial["number"] for trial in api.get(path).json()["items"]] == [1, 2]
    assert "COMPLETED" not in api.get(f"/v1/studies/{study.id}").json()["trials"]
