"""Importances of parameters: those of Optuna."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.importance import PedAnovaImportanceEvaluator

from scamp_service.exchange.frozen_trials import Freezer
from scamp_service.exchange.importances import LEAST_TRIALS, importances, replace_by_ranks
from scamp_service.exchange.optuna_space import OptunaSpace
from scamp_service.exchange.optuna_storage import ScampStorage
from scamp_service.model import Study
from scamp_service.search.samplers.optuna_study import optuna_is_silent
from scamp_service.store.store import Store
from scamp_service.study.objectives import Objectives
from scamp_service.study.parse import parse_study

SPEC = {
    "name": "nested",
    "workload": "vit_digits",
    "objective": {"metric": "loss", "direction": "minimize"},
    "space": {
        "lr": {"low": 1e-4, "high": 0.1, "log": True},
        "optimizer": {"choice": ["adam", "sgd"]},
        "momentum": {"low": 0.0, "high": 0.9, "when": {"optimizer": "sgd"}},
        "layers": {"repeat": {"low": 1, "high": 2}, "each": {"width": {"choice": [16, 32]}}},
    },
}


def candidates(number: int) -> list[dict[str, Any]]:
    source = random.Random(5)
    every_params = []
    for _ in range(number):
        optimizer = source.choice(["adam", "sgd"])
        params: dict[str, Any] = {"lr": 10 ** source.uniform(-4, -1), "optimizer": optimizer}
        if optimizer == "sgd":
            params["momentum"] = source.uniform(0, 0.9)
        every_params.append(
            params | {"layers": [{"width": source.choice([16, 32])} for _ in range(source.randint(1, 2))]}
        )
    return every_params


def filled(path: Path, number: int) -> tuple[Store, Study]:
    """A study of ScaMP's own trials that have all completed, with their learning rates as values."""
    store = Store(f"sqlite:///{path}/scamp.db")
    study = store.studies.create(parse_study(SPEC).to_json(), now=1.0)
    store.trials.create(study.id, list(enumerate(candidates(number))), now=1.0)
    with closing(sqlite3.connect(path / "scamp.db")) as database, database:
        database.execute("UPDATE scamp_trials SET state = 'COMPLETED', value = json_extract(params, '$.lr')")
    return store, study


def test_they_are_those_of_optuna_also_for_conditional_and_repeated_parameters(tmp_path: Path) -> None:
    store, study = filled(tmp_path, 60)
    num_trials, shares = importances(study, store)
    store.close()
    assert num_trials == 60
    assert next(iter(shares)) == "lr" and shares["lr"] > 0.5
    assert {"optimizer", "momentum", "layers", "layers.0.width", "layers.1.width"} < set(shares)
    loaded = optuna.load_study(study_name="nested", storage=ScampStorage(f"sqlite:///{tmp_path}/scamp.db"))
    with optuna_is_silent():
        theirs = optuna.importance.get_param_importances(loaded, evaluator=PedAnovaImportanceEvaluator())
    assert shares == pytest.approx(theirs)


def test_few_trials_have_none(tmp_path: Path) -> None:
    store, study = filled(tmp_path, LEAST_TRIALS - 1)
    assert importances(study, store) == (LEAST_TRIALS - 1, {})
    store.close()


def test_trials_that_were_stopped_early_count_behind_those_that_completed(tmp_path: Path) -> None:
    """ASHA stops most trials of a small study. The later one was stopped, the better it is."""
    store, study = filled(tmp_path, 25)
    with closing(sqlite3.connect(tmp_path / "scamp.db")) as database, database:
        database.execute("UPDATE scamp_trials SET state = 'PRUNED', step = 10 * number, value = 0 WHERE number >= 5")
    rows = store.external.seen_trials(study.id)
    trials = Freezer(store, OptunaSpace(study.spec), Objectives.of_spec(study.spec)).plain(rows)
    replace_by_ranks(trials, {row.number: row.step for row in rows}, Objectives.of_spec(study.spec))
    ranks = {trial.number: trial.values[0] for trial in trials}
    by_value = sorted(range(5), key=lambda number: trials[number].params["lr"])
    assert sorted(ranks, key=ranks.__getitem__) == [*by_value, *range(24, 4, -1)]
    num_trials, shares = importances(study, store)
    store.close()
    assert num_trials == 25 and sum(shares.values()) == pytest.approx(1)


def test_many_trials_are_thinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scamp_service.exchange.importances.MOST_TRIALS", 30)
    store, study = filled(tmp_path, 100)
    num_trials, shares = importances(study, store)
    assert num_trials == 30
    assert sum(shares.values()) == pytest.approx(1)
    store.close()
