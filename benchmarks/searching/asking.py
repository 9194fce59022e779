"""Times one ask and tell by TPE with 10,000 finished trials in the database, against Optuna on its RDB storage.

Both databases are SQLite files with the same trials. "New process" also reads them; "warm" has read them before.
``BoundedSampler`` asks as studies of ScaMP do: the sampler sees about a thousand trials. The same sampler on both
storages is in the table, too.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import optuna
import sqlalchemy as sa
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution, distribution_to_json
from optuna.samplers import BaseSampler, TPESampler
from optuna.storages import BaseStorage, RDBStorage, get_storage
from optuna.storages._rdb import models

from examples.bounded_sampler import BoundedSampler
from scamp_service.exchange.new_trials import new_trial_of
from scamp_service.exchange.optuna_storage import ScampStorage

NUM_TRIALS = 10_000
SPACE = {
    "lr": FloatDistribution(1e-4, 1e-1, log=True),
    "weight_decay": FloatDistribution(0.0, 1.0),
    "depth": IntDistribution(1, 12),
    "optimizer": CategoricalDistribution(["sgd", "adam", "lion"]),
}


def asking(num_asks: int) -> Mapping[str, Any]:
    """Milliseconds of an ask and tell, the median of ``num_asks`` on each storage in turn."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = f"sqlite:///{folder}/scamp.db", f"sqlite:///{folder}/optuna.db"
        trials = _trials()
        _fill_ours(ours, trials)
        _fill_theirs(theirs, trials)
        opened: Mapping[str, Callable[[], BaseStorage]] = {
            "ScaMP": lambda: ScampStorage(ours),
            "Optuna RDB": lambda: get_storage(theirs),
        }
        fresh = {name: _milliseconds(partial(_ask_anew, storage)) for name, storage in opened.items()}
        samplers: Mapping[str, Callable[[], BaseSampler]] = {
            "TPE": lambda: TPESampler(seed=0),
            "bounded TPE": lambda: BoundedSampler(TPESampler(seed=0)),
        }
        studies = {
            (name, sampler): _load(opened[name](), make()) for name in opened for sampler, make in samplers.items()
        }
        for study in studies.values():
            _ask(study)
        times: dict[tuple[str, str], list[float]] = {key: [] for key in studies}
        for _ in range(num_asks):
            for key, study in studies.items():
                times[key].append(_milliseconds(partial(_ask, study)))
        warm = {key: statistics.median(durations) for key, durations in times.items()}
    print(f"\n{'ask + tell, 10,000 trials':28}{'ms':>8}")
    for name, duration in fresh.items():
        print(f"{name + ', TPE, new process':28}{duration:>8.0f}")
    for (name, sampler), duration in warm.items():
        print(f"{f'{name}, {sampler}, warm':28}{duration:>8.0f}")
    base = warm["Optuna RDB", "TPE"]
    return {
        "ask_10k_ms": round(warm["ScaMP", "bounded TPE"], 1),
        "ask_10k_ratio": round(warm["ScaMP", "bounded TPE"] / base, 3),
        "ask_10k_same_sampler_ratio": round(warm["ScaMP", "TPE"] / base, 3),
        "ask_10k_bounded_storage_ratio": round(warm["ScaMP", "bounded TPE"] / warm["Optuna RDB", "bounded TPE"], 3),
        "ask_10k_new_process_ratio": round(fresh["ScaMP"] / fresh["Optuna RDB"], 3),
    }


def _load(storage: BaseStorage, sampler: BaseSampler) -> optuna.Study:
    return optuna.load_study(study_name="asked", storage=storage, sampler=sampler)


def _ask(study: optuna.Study) -> None:
    trial = study.ask(dict(SPACE))
    study.tell(trial, trial.params["weight_decay"])


def _ask_anew(storage: Callable[[], BaseStorage]) -> None:
    _ask(_load(storage(), TPESampler(seed=0)))


def _milliseconds(act: Callable[[], None]) -> float:
    began = time.perf_counter()
    act()
    return 1000 * (time.perf_counter() - began)


def _trials() -> list[optuna.trial.FrozenTrial]:
    source = random.Random(0)
    return [
        optuna.create_trial(
            value=source.random(),
            params={
                "lr": 10 ** source.uniform(-4, -1),
                "weight_decay": source.random(),
                "depth": source.randint(1, 12),
                "optimizer": source.choice(["sgd", "adam", "lion"]),
            },
            distributions=dict(SPACE),
        )
        for _ in range(NUM_TRIALS)
    ]


def _fill_ours(url: str, trials: list[optuna.trial.FrozenTrial]) -> None:
    storage = ScampStorage(url)
    study = optuna.create_study(study_name="asked", storage=storage)
    storage._store.external.create_trials(study._study_id, [new_trial_of(trial) for trial in trials], now=0.0)
    storage.close()


def _fill_theirs(url: str, trials: list[optuna.trial.FrozenTrial]) -> None:
    """Rows as Optuna writes them; through its own methods they take minutes."""
    storage = RDBStorage(url)
    study = optuna.create_study(study_name="asked", storage=storage)
    rows: dict[Any, list[dict[str, Any]]] = {
        models.TrialModel: [],
        models.TrialParamModel: [],
        models.TrialValueModel: [],
    }
    for number, trial in enumerate(trials):
        times = {"datetime_start": trial.datetime_start, "datetime_complete": trial.datetime_complete}
        columns = {"trial_id": number + 1, "number": number, "study_id": study._study_id, "state": trial.state}
        rows[models.TrialModel].append({**columns, **times})
        value = {"trial_id": number + 1, "objective": 0, "value": trial.value}
        rows[models.TrialValueModel].append({**value, "value_type": models.TrialValueModel.TrialValueType.FINITE})
        rows[models.TrialParamModel] += [
            {
                "trial_id": number + 1,
                "param_name": name,
                "param_value": SPACE[name].to_internal_repr(trial.params[name]),
                "distribution_json": distribution_to_json(SPACE[name]),
            }
            for name in SPACE
        ]
    with storage.engine.begin() as connection:
        for model, values in rows.items():
            connection.execute(sa.insert(model), values)
    storage.engine.dispose()
