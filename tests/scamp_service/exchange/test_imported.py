"""Studies of Optuna and Ray Tune are stored with their numbers, values, states and dates, and no import runs code."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import RDBStorage
from optuna.trial import TrialState as OptunaState
from sqlalchemy.pool import NullPool

from api.views.studies import study_view
from scamp_service.errors import InvalidInput
from scamp_service.exchange.from_optuna import read_optuna
from scamp_service.exchange.from_tune import read_tune
from scamp_service.exchange.imported import store_study
from scamp_service.exchange.optuna_storage import ScampStorage
from scamp_service.lifecycle import StudyState, TrialState
from scamp_service.store.store import Store
from scamp_service.store.summary import study_summary
from scamp_service.study.objective import Objective


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'data' / 'scamp.db'}"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = Store(url)
    yield opened
    opened.close()


def test_a_study_of_optuna_is_the_same_after_the_import(tmp_path: Path, store: Store, url: str) -> None:
    theirs = f"sqlite:///{tmp_path / 'optuna.db'}"
    source = RDBStorage(theirs, engine_kwargs={"poolclass": NullPool})
    study = optuna.create_study(study_name="theirs", storage=source, direction="maximize")
    study.set_user_attr("team", "vision")

    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 1e-3, 1.0, log=True)
        trial.suggest_categorical("act", ["relu", "gelu"])
        trial.report(x, 1)
        if trial.number == 1:
            raise optuna.TrialPruned
        if trial.number == 2:
            raise RuntimeError("boom")
        return x

    study.optimize(objective, n_trials=5, catch=RuntimeError)
    unended = study.ask()
    before = study.trials
    size = (tmp_path / "optuna.db").stat()
    (imported,) = read_optuna(theirs, "theirs")
    study_id = store_study(store, imported)
    assert (tmp_path / "optuna.db").stat().st_mtime_ns == size.st_mtime_ns, "nothing is written there"
    storage = ScampStorage(url)
    after = optuna.load_study(study_name="theirs", storage=storage)
    for old, new in zip(before[:-1], after.trials, strict=False):
        old._trial_id = new._trial_id
        assert new == old
    ended = after.trials[unended.number]
    assert (ended.state, ended.datetime_start) == (OptunaState.FAIL, before[-1].datetime_start)
    assert (after.direction, after.user_attrs) == (study.direction, {"team": "vision"})
    storage.close()
    kept = store.studies.get(study_id)
    assert (kept.state, kept.spec["space"]["x"]) == (StudyState.COMPLETED, {"low": 1e-3, "high": 1.0, "log": True})
    first, last = before[0].datetime_start, before[-1].datetime_start
    assert first
    assert last
    assert (kept.created_at, kept.finished_at) == (first.timestamp(), last.timestamp())
    assert store.trials.page(study_id)[-1].state is TrialState.CANCELLED
    best = store.trials.leaders(study_id, Objective.of_spec(kept.spec))[0]
    assert best.value == study.best_value
    assert study_view(kept, store.counts.states(study_id), best, 0.0).best, "the page can show it"
    assert study_summary(store, study_id, now=0.0).trials[TrialState.COMPLETED] == 3


@pytest.mark.parametrize("url", ["sqlite:////nowhere/optuna.db", "mysql://x/y", "no url://"])
def test_a_database_that_is_not_optunas_is_refused_and_not_created(url: str) -> None:
    with pytest.raises(InvalidInput):
        list(read_optuna(url))
    assert not Path("/nowhere").exists()


def test_a_database_of_scamp_is_not_taken_for_one_of_optuna(store: Store, url: str) -> None:
    with pytest.raises(InvalidInput, match="no tables of Optuna"):
        list(read_optuna(url))


class _Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def experiment(folder: Path) -> Path:
    """A results folder as Ray Tune 2.60 writes it. Its pickles create a file when they are loaded."""
    bomb = pickle.dumps(_Bomb(folder / "ran"))
    trials = [
        (
            "00000",
            {"lr": 0.01, "net": {"width": 16}},
            [(0.5, 101.0), (float("nan"), 102.0), (0.25, 103.0)],
            "TERMINATED",
        ),
        ("00001", {"lr": 0.1, "net": {"width": 8}}, [(0.9, 104.0)], "ERROR"),
        ("00002", {"lr": 0.05, "net": {"width": 8}}, [(0.4, 105.0)], "RUNNING"),
        ("00003", {"lr": 0.02, "net": {"width": 8}}, [], "PENDING"),
    ]
    states = []
    for suffix, config, rows, status in trials:
        place = folder / f"train_ab12c_{suffix}_{int(suffix)}_lr={config['lr']}_2026-11-26_05-13-51"
        place.mkdir(parents=True)
        (place / "params.json").write_text(json.dumps(config))
        (place / "params.pkl").write_bytes(bomb)
        if status == "ERROR":
            (place / "error.pkl").write_bytes(bomb)
        lines = [
            {"loss": loss, "timestamp": at, "training_iteration": step, "trial_id": f"ab12c_{suffix}", "config": config}
            for step, (loss, at) in enumerate(rows, 1)
        ]
        (place / "result.json").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"loss": 0.')
        about = {"trial_id": f"ab12c_{suffix}", "config": config, "status": status, "results": bomb.hex()}
        states.append([json.dumps(about), json.dumps({"start_time": 100.0 + int(suffix)})])
    (folder / "tuner.pkl").write_bytes(bomb)
    state = {"trial_data": states[::-1], "runner_data": {}, "stats": {}}
    (folder / "experiment_state-2026-11-26_05-13-51.json").write_text(json.dumps(state))
    return folder


def test_results_of_ray_tune_are_read_from_json_alone(tmp_path: Path, store: Store, url: str) -> None:
    folder = experiment(tmp_path / "exp")
    study_id = store_study(store, read_tune(folder, "loss", "min"))
    assert not (folder / "ran").exists(), "no pickle was loaded"
    trials = store.trials.page(study_id)
    ends = ["COMPLETED", "FAILED", "CANCELLED", "CANCELLED"]
    assert [(trial.number, trial.state.value) for trial in trials] == list(enumerate(ends))
    first = trials[0]
    assert (first.value, first.step, first.params) == (0.25, 3, {"lr": 0.01, "net": {"width": 16}})
    assert (first.started_at, first.finished_at, store.studies.get(study_id).created_at) == (100.0, 103.0, 100.0)
    storage = ScampStorage(url)
    study = optuna.load_study(study_name="exp", storage=storage)
    assert study.best_params == {"lr": 0.01, "net.width": 16} and study.metric_names == ["loss"]
    assert study.trials[0].datetime_start == datetime.fromtimestamp(100.0)
    assert list(study.trials[0].intermediate_values) == [1, 2, 3]
    storage.close()


def results(folder: Path, *trials: tuple[dict[str, Any], dict[str, Any]]) -> Path:
    """A results folder of trials that ended: parameters, and the only result of each."""
    for number, (params, result) in enumerate(trials):
        place = folder / f"train_{number:05d}"
        place.mkdir(parents=True)
        (place / "params.json").write_text(json.dumps(params))
        (place / "result.json").write_text(json.dumps({**result, "trial_id": f"t_{number:05d}", "done": True}))
    return folder


def test_a_metric_of_a_nested_result_of_ray_tune_has_the_name_that_tune_gives_it(tmp_path: Path, store: Store) -> None:
    folder = results(tmp_path / "exp", ({"lr": 1}, {"eval": {"loss": 0.5}}), ({"lr": 2}, {"eval": {"loss": 2.0}}))
    trials = store.trials.page(store_study(store, read_tune(folder, "eval/loss", "min")))
    assert [trial.value for trial in trials] == [0.5, 2.0]
    with pytest.raises(InvalidInput, match="called 'loss'; there are eval/loss"):
        read_tune(folder, "loss", "min")


def test_parameters_that_are_not_finite_are_kept_as_texts(tmp_path: Path, store: Store, url: str) -> None:
    values = [math.inf, math.nan, 3, math.nan]
    folder = results(
        tmp_path / "exp", *(({"depth": value, "net": {"drop": [value]}}, {"loss": 1.0}) for value in values)
    )
    study = store_study(store, read_tune(folder, "loss", "min"))
    assert [trial.params["depth"] for trial in store.trials.page(study)] == ["inf", "nan", 3, "nan"]
    assert store.trials.page(study)[0].params["net"] == {"drop": ["inf"]}
    assert store.studies.get(study).spec["space"]["depth"] == {"choice": ["inf", "nan", 3]}
    storage = ScampStorage(url)
    seen = [trial.params["depth"] for trial in optuna.load_study(study_name="exp", storage=storage).trials]
    assert seen[0] == math.inf and math.isnan(seen[1]) and seen[2] == 3
    storage.close()


def test_values_that_are_equal_in_python_stay_apart(tmp_path: Path, store: Store, url: str) -> None:
    values = [1, True, "1", None, 1.0]
    folder = results(tmp_path / "exp", *(({"n": value}, {"loss": 1.0}) for value in values))
    study = store_study(store, read_tune(folder, "loss", "min"))
    assert [repr(trial.params["n"]) for trial in store.trials.page(study)] == ["1", "True", "'1'", "None", "1.0"]
    storage = ScampStorage(url)
    seen = [trial.params["n"] for trial in optuna.load_study(study_name="exp", storage=storage).trials]
    assert seen == ["1", "true", '"1"', "null", "1.0"]
    storage.close()


def test_parameters_of_ray_tune_with_one_name_are_refused(tmp_path: Path) -> None:
    folder = results(tmp_path / "exp", ({"a.b": 2, "a": {"b": 3}}, {"loss": 1.0}))
    with pytest.raises(InvalidInput, match=r"two parameters of one trial are both called 'a\.b'"):
        read_tune(folder, "loss", "min")


def test_a_folder_without_results_or_metric_says_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="not a results folder"):
        read_tune(tmp_path, "loss", "min")
    with pytest.raises(InvalidInput, match="no result has a number called 'acc'; there are loss"):
        read_tune(experiment(tmp_path / "exp"), "acc", "max")
