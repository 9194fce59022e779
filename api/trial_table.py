"""The trials of a study as a file: CSV, JSON lines or Parquet, read and sent a part at a time.

CSV and Parquet have a row for each trial, with the columns of ``scamp.export.trial_row``.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from operator import itemgetter
from typing import Any, get_args, get_origin

from api.views.trials import TrialView, trial_view
from scamp_service.lifecycle import TrialState
from scamp_service.model import Trial
from scamp_service.store.fields import trial_fields
from scamp_service.store.store import Store
from scamp_service.study.objectives import Objectives
from scamp_service.study.spaces.parameter_axes import MISSING, axes_of, is_blocks, leaves_in, value_at

AT_ONCE = 500
"""Trials that are read together."""
_FIRST = ("number", "state", "value")
_LEFT_OUT = frozenset(["id", "study_id", *_FIRST, "params", "values", "metrics", "plan"])
_LAST = tuple(name for name in TrialView.model_fields if name not in _LEFT_OUT)
_first_cells, _last_cells = itemgetter(*_FIRST), itemgetter(*_LAST)
_EMPTY: Mapping[type[Any], str] = {list: "[]", tuple: "[]", dict: "{}", bool: "false"}
"""Types of values that are written as JSON, with that of the empty or false one."""
_json = json.JSONEncoder().encode


def _kinds_in(annotation: Any) -> set[Any]:
    """The type of a field, and those of a union."""
    return {get_origin(kind) or kind for kind in (annotation, *get_args(annotation))}


_JSON_FIELDS = tuple(name for name in _LAST if _EMPTY.keys() & _kinds_in(TrialView.model_fields[name].annotation))


class FileFormat(StrEnum):
    """Formats of a file of trials."""

    CSV = "csv"
    JSON_LINES = "jsonl"
    PARQUET = "parquet"


MEDIA_TYPES = {
    FileFormat.CSV: "text/csv",
    FileFormat.JSON_LINES: "application/jsonl",
    FileFormat.PARQUET: "application/vnd.apache.parquet",
}


class TrialTable:
    """Trials of a study in an order, with a column for each parameter and each metric that any of them has."""

    def __init__(
        self, store: Store, study_id: int, by: str, descending: bool, states: Sequence[TrialState] | None, where: str
    ) -> None:
        spec = store.studies.get(study_id).spec
        self._store, self._study_id, self._objectives = store, study_id, Objectives.of_spec(spec)
        self._numbers = store.table.order(study_id, by, descending=descending, states=states, where=where).numbers
        every = store.table.columns(study_id, ("params", "id"), states=states, where=where)
        present = dict.fromkeys(name for params in every["params"] for name in leaves_in(params))
        self._metrics = store.reports.counted_metrics(every["id"])
        self._metric_names = list(dict.fromkeys(name for values in self._metrics.values() for name in values))
        axes = axes_of(spec.get("space", {}))
        self._params = [name for name in dict.fromkeys((*axes, *present)) if name in present]
        self._is_flat = not any("." in name for name in self._params)

    def parts(self, file_format: FileFormat) -> Iterator[str | bytes]:
        """Parts of the file."""
        match file_format:
            case FileFormat.CSV:
                return self._csv()
            case FileFormat.JSON_LINES:
                return self._json_lines()
            case FileFormat.PARQUET:
                return self._parquet()

    def _csv(self) -> Iterator[str]:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self._columns)
        for trials in self._trials():
            yield text.getvalue()
            text.seek(0)
            text.truncate()
            writer.writerows(self._cells(trial, as_text=True) for trial in trials)
        yield text.getvalue()

    def _json_lines(self) -> Iterator[str]:
        for trials in self._trials():
            views = (trial_view(trial, self._objectives, self._metrics.get(trial.id, {})) for trial in trials)
            yield "".join(f"{view.model_dump_json()}\n" for view in views)

    def _parquet(self) -> Iterator[bytes]:
        import pyarrow  # here: it takes a quarter of a second
        from pyarrow import parquet

        rows = [self._cells(trial) for trials in self._trials() for trial in trials]
        columns = dict(zip(self._columns, zip(*rows, strict=True) if rows else [()] * len(self._columns), strict=True))
        stream = io.BytesIO()
        parquet.write_table(pyarrow.table({name: _typed(values) for name, values in columns.items()}), stream)
        yield stream.getvalue()

    @property
    def _columns(self) -> list[str]:
        num = len(self._objectives.items) if self._objectives.has_several else 0
        values = [f"values.{index}" for index in range(num)]
        params = (f"params.{name}" for name in self._params)
        return [*_FIRST, *values, *params, *(f"metrics.{name}" for name in self._metric_names), *_LAST]

    def _cells(self, trial: Trial, *, as_text: bool = False) -> list[Any]:
        """The cells of a trial in the order of the columns; ``as_text``: lists and truth values as JSON."""
        has_several = self._objectives.has_several
        fields = trial_fields(trial, self._objectives if has_several else None)
        values = fields["values"] if has_several else ()
        read = trial.params.get if self._is_flat else _reader(trial.params)
        metrics = self._metrics.get(trial.id, {})
        params: Iterable[Any] = map(read, self._params)
        if as_text:
            params = [_text(value) for value in params]
            fields.update({name: _text(fields[name]) for name in _JSON_FIELDS})
        return [*_first_cells(fields), *values, *params, *map(metrics.get, self._metric_names), *_last_cells(fields)]

    def _trials(self) -> Iterator[list[Trial]]:
        for start in range(0, len(self._numbers), AT_ONCE):
            part = self._numbers[start : start + AT_ONCE]
            by_number = {trial.number: trial for trial in self._store.trials.with_numbers(self._study_id, part)}
            yield [by_number[number] for number in part if number in by_number]  # one may be deleted meanwhile


def _text(value: Any) -> Any:
    """A list, a dictionary or a truth value as JSON; others as they are."""
    empty = _EMPTY.get(value.__class__)
    return value if empty is None else _json(value) if value else empty


def _reader(params: Mapping[str, Any]) -> Any:
    """Reads a flat parameter of nested ones; None for one that the candidate does not have."""

    def read(name: str) -> Any:
        value = value_at(params, name)
        return None if value is MISSING or is_blocks(value) else value

    return read


def _typed(values: Sequence[Any]) -> list[Any]:
    """Values of one type, as a column of Parquet needs: their JSON if they have several."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} and len(kinds) == 2:
        return [None if value is None else float(value) for value in values]
    if len(kinds) <= 1 and not kinds & {list, tuple, dict}:
        return list(values)
    return [None if value is None else _json(value) for value in values]
