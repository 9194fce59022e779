"""The terminal shows a study from the JSON of the API."""

from __future__ import annotations

import math
import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType
from typer.testing import CliRunner

from estimators.model import MIB
from scamp.cli.following import conclude, live
from scamp.cli.progress import closing_words, leaderboard, listed_line, live_view, next_line
from scamp.cli.terminal import _PlainConsole
from scamp.shown import shown_mib
from scamp_service.cli.main import app
from scamp_service.lifecycle import Outcome, StudyState, TrialState
from scamp_service.store.fields import trial_fields
from scamp_service.store.recorded_cluster import RecordedCluster
from scamp_service.store.store import Store
from scamp_service.store.summary import device_fill, study_summary
from scamp_service.store.tallies import prediction_errors_pct
from scamp_service.study.parse import parse_study
from tests.conftest import Scamp
from tests.services.serving import DEVICE, SECRET, SPEC, free_port, full_spec, served, settings_in
from tests.values import changed, new_attempt, sized, trial

FIXED: dict[str, Any] = {
    "fixed": {},
    "budget": {"trials": 4},
    "objective": {"metric": "accuracy", "direction": "maximize"},
}


def printed(block: RenderableType, width: int = 160) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(block)
    return capture.get()


def test_the_leaderboard_compares_tensors_that_were_predicted_with_tensors_that_were_measured() -> None:
    """30 MiB are reserved beyond the trace after an out-of-memory; 5 of them are tensors that it does not show."""
    healed = trial(predicted_bytes=50 * MIB, extra_bytes=30 * MIB, bias_bytes=5 * MIB, measured_bytes=25 * MIB)
    assert prediction_errors_pct([healed]) == [0.0]
    assert "25.0/25.0" in printed(leaderboard([trial_fields(healed)], FIXED))


def test_the_leaderboard_has_a_column_for_each_cost_that_is_known_of_any_trial() -> None:
    sized_trial = trial(measured_bytes=25 * MIB, measured_step_seconds=0.0314159, check_share=0.013)
    assert sized_trial.sized is not None
    predicted = replace(sized_trial, number=1, sized=changed(sized_trial.sized, step_seconds=1.25))
    shown = printed(leaderboard(map(trial_fields, (sized_trial, predicted)), FIXED), 80)
    assert "–/31.4" in shown and "1250/31.4" in shown and "1.3%" in shown
    assert "ms/step" not in printed(leaderboard([trial_fields(trial(measured_bytes=25 * MIB))], FIXED))


def test_the_leaderboard_says_why_a_trial_waits_or_was_pruned_although_it_has_a_value() -> None:
    waits = trial(state=TrialState.QUEUED, value=0.5, reason="waits 40 s after: rank 0: No space left on device")
    assert "waits 40 s after: rank 0: No space left" in printed(leaderboard([trial_fields(waits)], FIXED), 300)
    pruned = trial(state=TrialState.PRUNED, value=0.5, reason="worse than the median at step 20")
    assert "pruned: worse than the median at step 20" in printed(leaderboard([trial_fields(pruned)], FIXED), 300)
    ended = trial(state=TrialState.COMPLETED, value=0.5, reason="trained all 30 steps")
    assert "trained all" not in printed(leaderboard([trial_fields(ended)], FIXED), 300)


def test_the_leaderboard_shows_parameters_that_are_null() -> None:
    null_trial = trial(state=TrialState.COMPLETED, value=0.5, params={"decay": None, "lr": 0.1})
    assert "decay=null lr=0.1" in printed(leaderboard([trial_fields(null_trial)], FIXED), 200)
    assert "decay" not in printed(leaderboard([trial_fields(null_trial)], {**FIXED, "fixed": {"decay": None}}), 200)


def test_an_objective_that_is_not_finite_comes_after_all_others_with_its_reason() -> None:
    broken = [
        trial(number=n, state=TrialState.PRUNED, value=value, reason=f"was {value}")
        for n, value in enumerate([math.nan, math.inf])
    ]
    ended = [trial(number=n, state=TrialState.PRUNED, value=value) for n, value in ((2, 0.25), (3, 0.5))]
    shown = printed(leaderboard(map(trial_fields, [*broken, *ended]), FIXED)).splitlines()[2:]
    assert ["0.5000" in shown[0], "0.2500" in shown[1], " nan " in shown[2], " inf " in shown[3]] == [True] * 4
    assert shown[4:] == ["trial 0 pruned: was nan", "trial 1 pruned: was inf"]


def test_reasons_are_below_the_table_in_lines_of_their_own_once_for_all_trials_that_have_them() -> None:
    rows = [trial(number=n, state=TrialState.QUEUED, reason="waits for devices") for n in range(2)]
    failed = trial(number=2, state=TrialState.FAILED, reason="a reason of more than 80 characters " * 3)
    proposed = trial(number=3, state=TrialState.COMPLETED, value=0.5, proposal_reason="the best of 4 proposals")
    shown = printed(leaderboard(map(trial_fields, [*rows, failed, proposed]), FIXED), 80)
    assert len(shown.splitlines()) == 2 + 4 + 4, "the heading, a row for each trial, and reasons"
    assert shown.splitlines()[6:8] == ["trial 3: the best of 4 proposals", "trials 0, 1 queued: waits for devices"]


def test_a_reason_is_shown_to_its_end() -> None:
    failed = trial(
        state=TrialState.FAILED, reason=f"{'what happened ' * 50}\n→ what to do", proposal_reason="why " * 90
    )
    shown = printed(leaderboard([trial_fields(failed)], FIXED), 2000)
    assert "what happened → what to do\n" in shown and "why " * 90 in shown


def test_a_study_that_has_ended_says_its_number_and_what_is_useful_next() -> None:
    summary: dict[str, Any] = {"study": 7, "best": None, "front": []}
    trials = "and `scamp trials 7` lists all trials"
    best = {**summary, "best": {"trial": 3}}
    assert next_line(best) == f"study 7: `scamp weights 7` writes the best model, {trials}"
    assert "`SCAMP_DATA_DIR=x scamp weights 7` writes the best model" in next_line(best, "SCAMP_DATA_DIR=x scamp")
    assert "`scamp weights 7 TRIAL` writes the model of a trial" in next_line({**summary, "front": [{"trial": 3}]})
    assert "`scamp logs 7 TRIAL` shows what a trial has printed" in next_line(summary)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_study_without_success_ends_with_the_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    store = Store(settings_in(tmp_path).url)
    study = without_success(store)
    summary = study_summary(store, study, now=9.0).to_json()
    rows = [trial_fields(row) for row in store.trials.page(study)]
    store.close()
    assert not conclude(summary, rows, parse_study(full_spec()).to_json(), as_json, "")
    shown = capsys.readouterr()
    assert "trial 0 failed: ValueError\n" in (shown.err if as_json else shown.out)
    assert ("`scamp trials 1`" in shown.out) is not as_json


def test_logs_of_a_trial_that_has_printed_nothing_say_so_and_why_it_failed(tmp_path: Path) -> None:
    with served(settings_in(tmp_path, port=free_port())) as (url, store):
        study = without_success(store)
        logs = CliRunner().invoke(app, ["logs", str(study), "0", "--address", url])
    assert (logs.exit_code, logs.stdout) == (0, "")
    assert logs.stderr == f"trial 0 of study {study} has printed nothing\nfailed: ValueError\n"


def test_what_is_piped_is_not_wrapped(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    failed = [trial(state=TrialState.FAILED, reason="word " * 50)]
    for columns in (80, None):
        if columns:
            monkeypatch.setenv("COLUMNS", str(columns))
        else:
            monkeypatch.delenv("COLUMNS")
        _PlainConsole().print(leaderboard(map(trial_fields, failed), FIXED))
    in_columns, piped = capsys.readouterr().out.split("trial 0 failed: ")[1:]
    assert len(in_columns.partition("trial ")[0].splitlines()) > 3 and piped.splitlines()[0].count("word") == 50


def test_a_list_has_the_trials_that_are_wanted_and_projects_and_priorities_that_are_named() -> None:
    spec = {"budget": {"trials": 20}, "project": "default", "priority": 0}
    study = {"id": 7, "name": "s", "state_text": "Running", "trials": {"COMPLETED": 2, "RUNNING": 1}, "spec": spec}
    assert listed_line(study, 9) == "    7  Running    s  2 completed 1 running of 20 trials"
    urgent = {**study, "trials": {}, "spec": {**spec, "project": "vision", "priority": -3}}
    assert listed_line(urgent, 7) == "    7  Running  s  0 of 20 trials, project vision, priority -3"


def test_a_tiny_objective_is_not_shown_as_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    best = {"trial": 3, "value": 3.904e-09, "plan": ""}
    store = Store(settings_in(tmp_path).url)
    summary = study_summary(store, without_success(store), now=9.0).to_json()
    store.close()
    summary |= {"best": best, "best_metrics": {"loss": 3.904e-09}}
    with live(quiet=True) as update:
        update(summary, FIXED, {"devices": [{"id": "a/0"}]})
    tiny_trial = trial(state=TrialState.COMPLETED, value=3.904e-09)
    for shown in (
        capsys.readouterr().err,
        closing_words(summary),
        printed(live_view(summary, FIXED, {})),
        printed(leaderboard([trial_fields(tiny_trial)], FIXED)),
    ):
        assert "3.904e-09" in shown


def test_without_a_terminal_a_line_says_why_nothing_can_run(capsys: pytest.CaptureFixture[str]) -> None:
    summary = {"trials": {"WAITING": 4}, "best": None}
    without: dict[str, Any] = {"status": "no devices", "detail": "start nodes with GPUs \x1b[31m", "devices": []}
    with live(quiet=True) as update:
        for cluster in (without, without, {"status": "ready", "devices": [{"id": "a/0"}]}):
            update(summary, FIXED, cluster)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["4 waiting; cluster: no devices: start nodes with GPUs \\x1b[31m", "4 waiting"]


def test_what_users_write_moves_no_cursor_and_is_no_markup() -> None:
    failed = trial(params={"kind": "\x1b[2J"}, reason="ValueError: \x1b]0;owned\x07 [/]", state=TrialState.FAILED)
    spec = {"fixed": {}, "objective": {"metric": "[/]\x1b[31m", "direction": "maximize"}}
    shown = printed(leaderboard([trial_fields(failed)], spec), 300)
    assert "\x1b" not in shown and "\x07" not in shown
    assert r"\x1b[2J" in shown
    assert r"\x1b]0;owned\x07 [/]" in shown
    assert r"[/]\x1b[31m" in shown


def without_success(store: Store) -> int:
    """A completed study whose only trial failed."""
    study = store.studies.create(full_spec(), now=0.0)
    store.trials.create(study.id, [(0, {"lr": 0.01})], now=0.0)
    (row,) = store.trials.page(study.id)
    assert store.trials.move(row.id, TrialState.WAITING, 0, TrialState.QUEUED, now=1.0, sized=sized())
    assert store.attempts.begin(new_attempt(row.id, token=SECRET, now=2.0))
    assert store.reports.end(row.id, 1, SECRET, Outcome.ERROR, "ValueError", now=3.0)
    assert store.trials.move(row.id, TrialState.RUNNING, 1, TrialState.FAILED, now=4.0, reason="ValueError")
    assert store.studies.move(study.id, [StudyState.RUNNING], StudyState.COMPLETED, now=5.0, reason="target reached")
    return study.id


def test_a_completed_study_without_a_completed_trial_says_so(tmp_path: Path) -> None:
    store = Store(settings_in(tmp_path).url)
    summary = study_summary(store, without_success(store), now=9.0).to_json()
    store.close()
    assert summary["state"] == "COMPLETED"
    assert closing_words(summary).startswith("Completed, no trial succeeded\n1 failed in 5 s")
    assert "completed, no trial succeeded" in printed(live_view(summary, FIXED, {}))


def test_the_closing_words_has_the_error_of_step_times_where_any_were_predicted(tmp_path: Path) -> None:
    store = Store(settings_in(tmp_path).url)
    summary = study_summary(store, without_success(store), now=9.0).to_json()
    store.close()
    assert "step times" not in closing_words(summary)
    with_error = {**summary, "step_error_pct": {"median": 17.4, "max": 42.0}}
    words = "step times, predicted for gangs alone on their hosts, within 17 % (median), 42 % (worst)"
    assert words in closing_words(with_error)


def test_the_closing_words_has_the_share_of_memory_in_use_and_of_time_in_communication(tmp_path: Path) -> None:
    store = Store(settings_in(tmp_path).url)
    summary = study_summary(store, without_success(store), now=9.0).to_json()
    store.close()
    assert "memory that was reserved" not in closing_words(summary) and "communication" not in closing_words(summary)
    summary |= {"used_mib_seconds": 80.0, "reserved_mib_seconds": 100.0}
    summary |= {"communication_seconds": 1.0, "device_seconds": 8.0}
    assert "used 80 % of the memory that was reserved" in closing_words(summary)
    assert "12 % of device time in communication" in closing_words(summary)


def test_the_bars_of_devices_name_the_study_of_trials_of_other_studies(tmp_path: Path) -> None:
    store = Store(settings_in(tmp_path).url)
    mine, other = (store.studies.create(full_spec(), now=0.0) for _ in range(2))
    for study, num_trials in ((mine, 1), (other, 2)):
        store.trials.create(study.id, [(number, {"lr": 0.01}) for number in range(num_trials)], now=0.0)
    for row in [*store.trials.page(other.id), *store.trials.page(mine.id)]:
        assert store.trials.move(row.id, TrialState.WAITING, 0, TrialState.QUEUED, now=1.0, sized=sized())
        assert store.attempts.begin(new_attempt(row.id, token=SECRET, now=2.0))
    store.cluster.record(RecordedCluster("ready", "", (DEVICE,)), now=3.0)
    shown = [printed(live_view(study_summary(store, study.id, now=4.0).to_json(), FIXED, device_fill(store)))
             for study in (mine, other)]  # fmt: skip
    store.close()
    assert f"MiB #0; study {other.id}: #0 #1\n" in shown[0]
    assert f"MiB #0 #1; study {mine.id}: #0\n" in shown[1]


@pytest.mark.full
def test_list_and_status_say_when_no_trial_succeeded(tmp_path: Path, scamp: Scamp) -> None:
    num_wanted = full_spec()["budget"]["trials"]
    with served(settings_in(tmp_path, port=free_port())) as (url, store):
        assert "no studies yet" in scamp(tmp_path, "list", SCAMP_ADDRESS=url).stdout
        study = without_success(store)
        running = store.studies.create(full_spec(), now=0.0).id
        done = scamp(tmp_path, "list", SCAMP_ADDRESS=url)
        listed = done.stdout.splitlines()
        status = scamp(tmp_path, "status", str(study), SCAMP_ADDRESS=url).stdout
    head = f"{study:>5}  Completed, no trial succeeded  {SPEC['name']}  1 failed of {num_wanted} trials, "
    assert listed[0].startswith(head) and listed[0].endswith(" device-hours")
    assert listed[1].split() == [str(running), "Running", *SPEC["name"].split(), "0", "of", str(num_wanted), "trials"]
    assert done.stderr.startswith("the controller does not run, so no trial is started")
    assert f"1 failed of {num_wanted} trials\n" in status
    assert "completed, no trial succeeded" in status
    assert "Completed, no trial succeeded\n1 failed" in status and "trial 0 failed: ValueError\n" in status
    assert status.endswith("ended: target reached\n")


def test_importances_are_shown_once_enough_trials_have_a_value(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, port=free_port())
    with served(settings) as (url, store):
        empty, study = (store.studies.create(full_spec(), now=0.0).id for _ in range(2))
        store.trials.create(study, [(number, {"lr": 0.01 + number / 1000}) for number in range(9)], now=0.0)
        with closing(sqlite3.connect(tmp_path / "scamp.db")) as database, database:
            database.execute("UPDATE scamp_trials SET state = 'PRUNED', value = json_extract(params, '$.lr')")
        few, many = (CliRunner().invoke(app, ["importances", str(shown), "--address", url]) for shown in (empty, study))
        both = CliRunner().invoke(app, ["compare", str(empty), str(study), "--address", url])
    assert few.stdout.startswith("importances are known once 8 trials have a value") and "; 0 have" in few.stdout
    assert many.stdout.splitlines() == [" 100%  lr", "from 9 trials: rough"]
    assert re.search(r"importance of lr +– +100%", both.stdout)


def test_small_memory_is_not_shown_as_zero() -> None:
    assert [shown_mib(mib * MIB) for mib in (0, 0.0312, 0.96, 12.34)] == ["0.0", "0.031", "1.0", "12.3"]
