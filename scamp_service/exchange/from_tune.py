"""Reads the results of Ray Tune from a folder. Only its JSON files are read: its pickles could run code."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)

from scamp_service.errors import InvalidInput
from scamp_service.exchange.conversions import space_of_distributions
from scamp_service.exchange.imported import Imported
from scamp_service.exchange.optuna_space import label_of
from scamp_service.lifecycle import TrialState
from scamp_service.store.parts.external import RUN_BY_OTHERS, NewTrial
from scamp_service.study.values import is_number, key_of

_STATES = {"TERMINATED": TrialState.COMPLETED, "ERROR": TrialState.FAILED}
NOT_ENDED = "had not ended when the results were imported"


def read_tune(folder: Path, metric: str, mode: Literal["min", "max"]) -> Imported:
    """The experiment in a results folder of Ray Tune. ``metric`` and ``mode`` are those of its ``TuneConfig``.

    A metric of a nested result is named as in Tune, such as ``eval/loss``. The value of a trial is its last result.
    Raises ``InvalidInput`` if the folder has no results with this metric, or two parameters with one name.
    """
    folders = sorted(path.parent for path in folder.glob("*/params.json"))
    if not folders:
        raise InvalidInput(f"{folder} is not a results folder of Ray Tune: no folder in it has a params.json")
    trial_rows = _trial_rows(folder)
    read = [_Result(path, trial_rows, metric) for path in folders]
    read.sort(key=lambda result: result.place)
    if not any(result.reports for result in read):
        metric_names = sorted({name for result in read for name in result.names})
        raise InvalidInput(f"no result has a number called {metric!r}; there are {', '.join(metric_names) or 'none'}")
    flat = [_flat_params(result.params) for result in read]
    every_name = dict.fromkeys(name for config in flat for name in config)
    columns = {name: [config[name] for config in flat if name in config] for name in every_name}
    space = space_of_distributions({name: _distribution(values) for name, values in columns.items()})
    for name in (name for name, values in columns.items() if _look_alike(values)):
        flat = [{**config, name: json.dumps(config[name])} if name in config else config for config in flat]
        columns[name] = [json.dumps(value) for value in columns[name]]
    distributions = {name: _distribution(values) for name, values in columns.items()}
    trials = [result.trial(params, distributions) for result, params in zip(read, flat, strict=True)]
    direction = "minimize" if mode == "min" else "maximize"
    return Imported(folder.name[:100], "ray tune", [direction], trials, metric, space)


class _Result:
    """The folder of one trial."""

    def __init__(self, folder: Path, trial_rows: Mapping[str, Mapping[str, Any]], metric: str) -> None:
        params = _read(folder / "params.json")
        self.params: Mapping[str, Any] = params if isinstance(params, dict) else {}
        self.rows = [dict(_leaves("", "/", row)) for row in _rows(folder / "result.json")]
        self.names = {
            name
            for row in self.rows
            for name, value in row.items()
            if is_number(value) and not name.startswith("config/")
        }
        self.reports = {
            int(row.get("training_iteration", index)): float(row[metric])
            for index, row in enumerate(self.rows, 1)
            if is_number(row.get(metric))
        }
        last = self.rows[-1] if self.rows else {}
        self.id = str(
            last.get("trial_id")
            or next((trial_id for trial_id in trial_rows if f"_{trial_id}_" in f"_{folder.name}_"), "")
        )
        about = trial_rows.get(self.id, {})
        suffix = self.id.rpartition("_")[2]
        self._started_at = about.get("start_time") or self._first()
        self.place = (int(suffix) if suffix.isdecimal() else math.inf, self._started_at or math.inf, folder.name)
        self._state, self._why = self._ended(about, folder)
        self._finished_at = last.get("timestamp") or self._started_at

    def _first(self) -> float | None:
        if not self.rows or not is_number(self.rows[0].get("timestamp")):
            return None
        return float(self.rows[0]["timestamp"]) - float(self.rows[0].get("time_total_s") or 0.0)

    def _ended(self, about: Mapping[str, Any], folder: Path) -> tuple[TrialState, str]:
        status = about.get("status") or ("TERMINATED" if self.rows and self.rows[-1].get("done") else "")
        if status == "ERROR" or (folder / "error.txt").is_file():
            return TrialState.FAILED, "failed in Ray Tune"
        if status not in _STATES:
            return TrialState.CANCELLED, NOT_ENDED
        return (TrialState.COMPLETED, RUN_BY_OTHERS) if self.reports else (TrialState.FAILED, "reported no objective")

    def trial(self, params: Mapping[str, Any], distributions: Mapping[str, BaseDistribution]) -> NewTrial:
        value = self.reports[max(self.reports)] if self.reports else None
        state = self._state
        if state is TrialState.COMPLETED and value is not None and math.isnan(value):
            state = TrialState.FAILED
        return NewTrial(
            state,
            params=self.params,
            searched={
                name: (float(distributions[name].to_internal_repr(param)), distribution_to_json(distributions[name]))
                for name, param in params.items()
            },
            values=[value] if state is TrialState.COMPLETED and value is not None else None,
            reports=self.reports,
            user_attributes={"tune:trial_id": self.id} if self.id else {},
            started_at=_seconds(self._started_at),
            finished_at=_seconds(self._finished_at),
            reason=self._why,
        )


def _trial_rows(folder: Path) -> dict[str, dict[str, Any]]:
    """Status and times of trials by id, from the newest state of the experiment; empty if it has none."""
    states = sorted(folder.glob("experiment_state-*.json"))
    if not states:
        return {}
    content = _read(states[-1])
    trials: dict[str, dict[str, Any]] = {}
    for parts in content.get("trial_data", []) if isinstance(content, dict) else []:
        about: dict[str, Any] = {}
        for part in parts if isinstance(parts, list) else []:
            row = _parse(part) if isinstance(part, str) else part
            if isinstance(row, dict):  # values that Tune has pickled are texts here, and stay so
                about |= {name: row[name] for name in ("trial_id", "status", "start_time") if name in row}
        trials[str(about.get("trial_id"))] = about
    return trials


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """The results of a trial, one in each line; a line that was cut off ends them."""
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            row = _parse(line)
            if isinstance(row, dict):
                yield row


def _read(path: Path) -> Any:
    try:
        return _parse(path.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from None


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _flat_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters by the name of their path, such as ``net.width``, as Optuna can have them. Raises ``InvalidInput``."""
    flat: dict[str, Any] = {}
    for name, value in _leaves("", ".", params):
        if name in flat:
            raise InvalidInput(f"two parameters of one trial are both called {name!r}: rename one in its params.json")
        flat[name] = label_of(value)
    return flat


def _leaves(prefix: str, separator: str, nested: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in nested.items():
        if isinstance(value, Mapping):
            yield from _leaves(f"{prefix}{name}{separator}", separator, value)
        else:
            yield f"{prefix}{name}", value


def _look_alike(values: Sequence[Any]) -> bool:
    """Whether values of unlike types are equal, so that Optuna would not tell them apart: ``True`` is 1."""
    return len(set(values)) < len(set(map(key_of, values)))


def _distribution(values: Sequence[Any]) -> BaseDistribution:
    """The smallest distribution that has these values: results do not say from which they were drawn."""
    if not all(is_number(value) and math.isfinite(value) for value in values):
        return CategoricalDistribution(list({json.dumps(value): value for value in values}.values()))
    if all(isinstance(value, int) for value in values):
        return IntDistribution(min(values), max(values))
    return FloatDistribution(float(min(values)), float(max(values)))


def _seconds(value: Any) -> float | None:
    return float(value) if is_number(value) and math.isfinite(value) else None
