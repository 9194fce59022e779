"""The study database as an Optuna storage: Optuna's own contract, and studies that ScaMP and Optuna share."""

from __future__ import annotations

import json
import math
import re
import shlex
import socket
import subprocess
import urllib.request
import warnings
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import optuna
import pytest
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna.testing.pytest_storages import StorageTestCase
from optuna.trial import TrialState as OptunaState
from sqlalchemy.pool import NullPool

from scamp_service.exchange.optuna_storage import ScampStorage
from scamp_service.lifecycle import AttemptState, Origin, Outcome, StudyState, TrialState
from scamp_service.model import Metric, Report, TrialChanges
from scamp_service.search.proposals import Search
from scamp_service.store.database import _parse
from scamp_service.store.store import Store
from scamp_service.study.objectives import Objectives
from scamp_service.study.parse import parse_study
from scamp_service.study.spec import StudySpec
from tests.values import new_attempt, sized
from tests.waiting import PATIENCE_SECONDS, until

ROOT = Path(__file__).resolve().parents[3]
SPACE = {
    "lr": {"low": 1e-4, "high": 1e-1, "log": True},
    "dropout": {"low": 0.0, "high": 0.35, "step": 0.1},
    "optimizer": {"choice": ["sgd", "adam"]},
    "momentum": {"low": 0.0, "high": 0.9, "when": {"optimizer": "sgd"}},
    "kernel": {"choice": [[3, 3], None]},
}
PARAMS = {"lr": 0.01, "dropout": 0.1, "optimizer": "sgd", "momentum": 0.5, "kernel": [3, 3]}


@pytest.fixture
def url(shared_url: str) -> str:
    return shared_url


@pytest.fixture
def storage(url: str) -> Iterator[ScampStorage]:
    opened = ScampStorage(url)
    yield opened
    opened.close()


class TestContract(StorageTestCase):
    """All tests that Optuna ships for storages; the store, which does the work, has its contract on each database."""

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'scamp.db'}"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = Store(url)
    yield opened
    opened.close()


def spec() -> StudySpec:
    head = {"name": "digits", "workload": "vit_digits", "objective": {"metric": "loss", "direction": "minimize"}}
    return parse_study({**head, "space": SPACE, "fixed": {"batch": 32}, "budget": {"trials": 8, "steps": 30}})


def begun(store: Store, trial: int) -> None:
    plan = sized()
    assert store.trials.move(trial, TrialState.WAITING, 0, TrialState.QUEUED, now=2.0, sized=plan)
    assert store.attempts.begin(new_attempt(trial, now=3.0)) and store.reports.start(trial, 1, "t", now=3.0)


def report(store: Store, trial: int, losses: list[float]) -> None:
    for seq, loss in enumerate(losses):
        metric = Metric(trial, 1, seq, 10 * (seq + 1), {"loss": loss, "accuracy": 1 - loss}, 4.0)
        assert store.reports.add(Report(trial, 1, "t", metrics=[metric], objectives=["loss"]), now=4.0)


def completed(store: Store, trial: int, losses: list[float]) -> None:
    begun(store, trial)
    report(store, trial, losses)
    store.reports.end(trial, 1, "t", Outcome.DONE, "", now=5.0)
    store.attempts.move(trial, 1, [AttemptState.RUNNING], AttemptState.ENDED, now=5.0)
    assert store.trials.move(trial, TrialState.RUNNING, 1, TrialState.COMPLETED, now=5.0)


def diverged(store: Store, trial: int, losses: list[float]) -> None:
    """Run a trial whose loss became infinite after these, as the controller does."""
    begun(store, trial)
    report(store, trial, losses)
    store.reports.end(trial, 1, "t", Outcome.DIVERGED, "the loss is inf", now=5.0)
    store.attempts.move(trial, 1, [AttemptState.RUNNING], AttemptState.ENDED, now=5.0)
    reason, changes = "diverged: the loss is inf", TrialChanges(value=math.nan)
    assert store.trials.move(trial, TrialState.RUNNING, 1, TrialState.PRUNED, now=5.0, reason=reason, changes=changes)


def scheduled(store: Store) -> int:
    """A study that ScaMP schedules: one trial has completed, one runs, one fits nowhere, one waits, one diverged."""
    study = store.studies.create(spec().to_json(), now=1.0).id
    other = {**PARAMS, "optimizer": "adam", "kernel": None}
    del other["momentum"]
    store.trials.create(study, [(0, PARAMS), (1, other), (2, PARAMS), (3, PARAMS), (4, PARAMS)], now=1.0)
    ids = [trial.id for trial in store.trials.page(study)]
    completed(store, ids[0], [0.5, 0.25])
    begun(store, ids[1])
    store.trials.move(ids[2], TrialState.WAITING, 0, TrialState.INFEASIBLE, now=2.0, reason="needs 41 GiB")
    diverged(store, ids[4], [0.5])
    return study


def test_several_objectives_are_directions_and_values(storage: ScampStorage, store: Store) -> None:
    objectives = [{"metric": "predicted.peak_mib", "direction": "minimize"}, {"metric": "accuracy"}]
    fields = {name: value for name, value in spec().as_given().items() if name != "objective"}
    several = parse_study({**fields, "objectives": [*objectives, {"metric": "loss", "direction": "minimize"}]})
    study = store.studies.create(several.to_json(), now=1.0).id
    store.trials.create(study, [(0, PARAMS), (1, PARAMS)], now=1.0)
    first, second = (trial.id for trial in store.trials.page(study))
    begun(store, first)
    row = Metric(first, 1, 0, 10, {"loss": 0.25, "accuracy": 0.75}, 4.0)
    assert store.reports.add(Report(first, 1, "t", metrics=[row], objectives=several.every_objective.names), now=4.0)
    assert store.trials.get(first).values == (None, 0.75, 0.25) and store.trials.get(first).value == 0.75
    assert store.trials.move(first, TrialState.RUNNING, 1, TrialState.COMPLETED, now=5.0)
    begun(store, second)
    loaded = optuna.load_study(study_name="digits", storage=storage)
    assert [direction.name for direction in loaded.directions] == ["MINIMIZE", "MAXIMIZE", "MINIMIZE"]
    assert loaded.metric_names == ["predicted.peak_mib", "accuracy", "loss"]
    assert [trial.values for trial in loaded.trials] == [[20.0, 0.75, 0.25], None]
    assert [trial.number for trial in loaded.best_trials] == [0]


def test_values_of_several_objectives_of_another_program_are_on_the_front(storage: ScampStorage, store: Store) -> None:
    study = optuna.create_study(storage=storage, directions=["minimize", "maximize"])
    for values in ([1.0, 1.0], [2.0, 2.0], [3.0, 1.5]):
        study.tell(study.ask(), values)
    study_row = store.studies.get(study._study_id)
    front = Objectives.of_spec(study_row.spec).front_of(store.trials.scores(study_row.id))
    assert [(score.number, score.values) for score in front] == [(0, (1.0, 1.0)), (1, (2.0, 2.0))]


def test_a_study_of_scamp_is_loaded_by_its_name(storage: ScampStorage, store: Store) -> None:
    study_id = scheduled(store)
    study = optuna.load_study(study_name="digits", storage=storage)
    assert study.direction is optuna.study.StudyDirection.MINIMIZE and study.metric_names == ["loss"]
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "RUNNING", "FAIL", "WAITING", "PRUNED"]
    best, other, refused, _, pruned = study.trials
    assert (best.value, best.intermediate_values) == (0.25, {10: 0.5, 20: 0.25})
    assert best.params == {**PARAMS, "kernel": "[3, 3]"}
    assert set(best.params) - set(other.params) == {"momentum"}
    assert all(
        trial.distributions[name]._contains(trial.distributions[name].to_internal_repr(trial.params[name]))
        for trial in study.trials
        for name in trial.params
    )
    assert refused.user_attrs["scamp:state"] == "INFEASIBLE" and refused.user_attrs["scamp:reason"] == "needs 41 GiB"
    assert (pruned.user_attrs["scamp:reason"], pruned.value) == ("diverged: the loss is inf", None)
    assert pruned.intermediate_values == {10: 0.5}
    store.studies.create(spec().to_json(), now=1.0)
    assert storage.get_study_name_from_id(study_id + 1) == f"digits #{study_id + 1}"
    names = {summary.study_name for summary in storage.get_all_studies()}
    assert {storage.get_study_id_from_name(name) for name in names} == {study_id, study_id + 1}


def test_a_trial_that_a_limit_has_cancelled_waits_again_once_the_limit_is_raised(
    storage: ScampStorage, store: Store
) -> None:
    limited = {**spec().to_json(), "budget": {**spec().to_json()["budget"], "seconds": 60.0}}
    study_id, why = store.studies.create(limited, now=1.0).id, "the study has used up its 60 s (budget.seconds)"
    store.trials.create(study_id, [(0, PARAMS)], now=1.0)
    (trial,) = store.trials.page(study_id)
    store.trials.move(trial.id, TrialState.WAITING, 0, TrialState.CANCELLED, reason=why, now=61.0)
    store.studies.move(study_id, [StudyState.RUNNING], StudyState.COMPLETED, reason=why, now=61.0)
    study = optuna.load_study(study_name="digits", storage=storage)
    assert [trial.state.name for trial in study.trials] == ["FAIL"]
    store.requests.extend(study_id, {"seconds": 600.0}, now=62.0)
    assert [trial.state.name for trial in study.trials] == ["WAITING"]


def test_another_process_adds_trials_while_scamp_runs_its_own(storage: ScampStorage, store: Store) -> None:
    study_id = scheduled(store)
    before = store.trials.page(study_id)
    study = optuna.load_study(study_name="digits", storage=storage, sampler=optuna.samplers.TPESampler(seed=0))

    def objective(trial: optuna.Trial) -> float:
        lr = trial.suggest_float("lr", 1e-4, 1e-1, log=True)
        trial.suggest_categorical("optimizer", ["sgd", "adam"])
        trial.report(lr, 10)
        store.trials.create(study_id, [(5, PARAMS), (6, PARAMS)], now=6.0)  # meanwhile
        return lr

    study.optimize(objective, n_trials=4)
    trials = store.trials.page(study_id)
    assert [trial.number for trial in trials] == list(range(len(trials)))
    assert repr(trials[: len(before)]) == repr(before), "other programs change nothing of ScaMP's"
    theirs = [trial for trial in trials if trial.origin is Origin.EXTERNAL]
    assert [trial.state for trial in theirs] == [TrialState.COMPLETED] * 4
    assert all(trial.value == trial.params["lr"] for trial in theirs)
    assert len(trials) == len(before) + 4 + 2, "neither loses a trial"
    with pytest.raises(ValueError):  # a choice that the study does not have
        study.ask({"optimizer": optuna.distributions.CategoricalDistribution(["lion"])})
    with pytest.raises(UpdateFinishedTrialError, match="run by ScaMP"):
        storage.set_trial_state_values(before[1].id, OptunaState.FAIL)
    assert store.trials.leaders(study_id, spec().objective)[0] == min(
        (trial for trial in trials if trial.state is TrialState.COMPLETED and trial.value == trial.value),
        key=lambda row: math.inf if row.value is None else row.value,
    )


def test_trials_of_other_programs_are_history_for_the_sampler_of_the_study(storage: ScampStorage, store: Store) -> None:
    study_id = store.studies.create(spec().to_json(), now=1.0).id
    study = optuna.load_study(study_name="digits", storage=storage)
    space = {
        name: distribution
        for name, distribution in storage._known_of(study_id).distributions.items()
        if name != "momentum"
    }
    for _ in range(3):
        study.tell(study.ask(space), 0.5)
    search = Search(spec())
    search.propose(store.trials.page(study_id), 0, 1)
    complete = [trial for trial in store.trials.page(study_id) if trial.params["optimizer"] == "adam"]
    shown = search._history.shown(3).completed
    assert {row.number for row in shown} <= {trial.number for trial in store.trials.page(study_id)}
    assert len(shown) >= len([row for row in complete if row.params["kernel"] is None])


def test_what_optuna_enqueues_is_for_those_who_ask_through_it(storage: ScampStorage, store: Store) -> None:
    study_id = scheduled(store)
    study = optuna.load_study(study_name="digits", storage=storage)
    study.enqueue_trial({"lr": 0.003})
    assert [trial.number for trial in store.trials.live()] == [1, 3], "ScaMP does not run it"
    trial = study.ask()
    assert trial.number == 5 and trial.suggest_float("lr", 1e-4, 1e-1, log=True) == 0.003
    assert study.ask().number == 6, "trials of ScaMP that wait are not taken"
    assert store.trials.numbered(study_id, 3).state is TrialState.WAITING


def test_threads_that_ask_and_tell_get_numbers_of_their_own(storage: ScampStorage) -> None:
    study = optuna.create_study(study_name="theirs", storage=storage)

    def work() -> None:
        for _ in range(5):
            study.tell(study.ask(), 1.0)

    workers = [Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [trial.number for trial in study.trials] == list(range(15))


def test_what_a_running_trial_has_is_seen_by_other_processes_soon(storage: ScampStorage, url: str) -> None:
    study = optuna.create_study(study_name="theirs", storage=storage)
    trial = study.ask()
    trial.suggest_float("x", 0, 1)
    trial.set_user_attr("a", 1)
    other = ScampStorage(url)
    until(lambda: other.get_trial(trial._trial_id).user_attrs, "the attributes of the trial")
    assert other.get_trial(trial._trial_id).params == trial.params
    other.close()


def test_a_trial_whose_process_has_died_is_told_apart(url: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        storage = ScampStorage(url, heartbeat_interval=1, grace_period=30)
        study = optuna.create_study(study_name="theirs", storage=storage)
        dead, alive = study.ask(), study.ask()
        for trial in (dead, alive):
            storage.record_heartbeat(trial._trial_id)
        with storage._store._database.write() as connection:
            connection.exec_driver_sql(
                f"UPDATE scamp_external_trials SET heartbeat_at = 1 WHERE trial_id = {dead._trial_id}"
            )
        optuna.storages.fail_stale_trials(study)
        assert [trial.state for trial in study.trials] == [OptunaState.FAIL, OptunaState.RUNNING]
        storage.close()


def test_optunas_own_storage_in_the_same_database_does_no_harm(storage: ScampStorage, store: Store, url: str) -> None:
    scheduled(store)
    optuna.create_study(study_name="by ScampStorage", storage=storage).add_trial(optuna.create_trial(value=1.0))
    shared = _parse(url).render_as_string(hide_password=False)
    optuna_storage = RDBStorage(shared, engine_kwargs={"poolclass": NullPool})
    assert optuna_storage.get_all_studies() == [], "it sees none of ours"
    optuna.create_study(study_name="digits", storage=optuna_storage).add_trial(optuna.create_trial(value=7.0))
    assert optuna.load_study(study_name="digits", storage=storage).best_value == 0.25
    assert optuna.load_study(study_name="by ScampStorage", storage=storage).best_value == 1.0
    optuna_storage.remove_session()


def test_optunas_plots_show_a_study_of_scamp(storage: ScampStorage, store: Store) -> None:
    scheduled(store)
    study = optuna.load_study(study_name="digits", storage=storage)
    for _ in range(4):
        study.tell(study.ask({"lr": optuna.distributions.FloatDistribution(1e-4, 1e-1, log=True)}), 0.4)
    plots = optuna.visualization
    for plot in (plots.plot_optimization_history, plots.plot_slice, plots.plot_intermediate_values, plots.plot_edf):
        assert json.loads(plot(study).to_json())["data"]
    assert optuna.importance.get_param_importances(study, params=["lr"]) == {"lr": 1.0}


@pytest.mark.full
def test_the_command_of_the_documentation_opens_optunas_dashboard(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'scamp.db'}"
    store = Store(url)
    scheduled(store)
    store.close()
    page = (ROOT / "docs" / "optuna.md").read_text()
    (command,) = re.findall(r"^PYTHONPATH=\. (\.venv/bin/python -c .*run_server.*)$", page, re.MULTILINE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = command.replace("port=8080", f"port={port}")
    environment = {"PYTHONPATH": ".", "PATH": "/usr/bin:/bin", "SCAMP_DATABASE_URL": url}
    server = subprocess.Popen(shlex.split(command), cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    try:
        studies = _answer(f"http://127.0.0.1:{port}/api/studies", server)["study_summaries"]
        detail = _answer(f"http://127.0.0.1:{port}/api/studies/{studies[0]['study_id']}?after=0", server)
    finally:
        server.terminate()
        server.wait(PATIENCE_SECONDS)
    assert studies[0]["study_name"] == "digits"
    assert [trial["state"] for trial in detail["trials"]] == ["Complete", "Running", "Fail", "Waiting", "Pruned"]


def _answer(address: str, server: subprocess.Popen[bytes]) -> dict[str, list[dict[str, object]]]:
    def answer() -> dict[str, list[dict[str, object]]] | None:
        try:
            with urllib.request.urlopen(address, timeout=PATIENCE_SECONDS) as response:
                answers: dict[str, list[dict[str, object]]] = json.load(response)
                return answers
        except OSError:
            assert server.poll() is None
            return None

    return until(answer, "the dashboard of Optuna")


def test_a_study_of_optuna_is_shown_and_deleted_like_others(storage: ScampStorage, store: Store) -> None:
    study = optuna.create_study(study_name="theirs", storage=storage, directions=["minimize", "maximize"])
    trial = study.ask()
    trial.set_user_attr("seed", float("inf"))
    study.tell(trial, [1.0, 2.0])
    (shown,) = store.studies.page()
    assert (shown.state, store.studies.page(live=True), store.trials.live()) == (StudyState.EXTERNAL, [], [])
    assert [row.values for row in study.best_trials] == [[1.0, 2.0]] and study.trials[0].user_attrs["seed"] > 1e308
    optuna.delete_study(study_name="theirs", storage=storage)
    assert store.studies.page() == []


def test_a_failed_trial_that_is_retried_is_waiting_again(storage: ScampStorage, store: Store) -> None:
    study_id = store.studies.create(spec().to_json(), now=1.0).id
    store.trials.create(study_id, [(0, PARAMS)], now=1.0)
    assert store.trials.move(store.trials.page(study_id)[0].id, TrialState.WAITING, 0, TrialState.FAILED, now=2.0)
    study = optuna.load_study(study_name="digits", storage=storage)
    assert [trial.state.name for trial in study.trials] == ["FAIL"]
    store.requests.retry(study_id, now=3.0)
    assert [trial.state.name for trial in study.trials] == ["WAITING"]
