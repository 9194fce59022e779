"""Writes the trials of a study as CSV, JSON lines or Parquet, with the columns of ``trial_row``."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from scamp.errors import InvalidInput

_FIRST = ("number", "state", "value")
_GROUPS = ("values.", "params.", "metrics.")
_LEFT_OUT = ("id", "study_id", "plan", *_FIRST, "values", "params", "metrics")


def write_json_lines(trials: Iterable[Mapping[str, Any]], stream: TextIO) -> None:
    """Write trials, as the API returns them, as JSON lines."""
    for trial in trials:
        stream.write(json.dumps(trial, allow_nan=False) + "\n")


def csv_parts(columns: Sequence[str], parts: Iterable[Iterable[Mapping[str, Any]]]) -> Iterator[str]:
    """Parts of a CSV with these columns, the head first, then the rows of each part. A row may lack columns."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for rows in parts:
        yield text.getvalue()
        text.seek(0)
        text.truncate()
        writer.writerows([_cell(row.get(name)) for name in columns] for row in rows)
    yield text.getvalue()


def write_parquet(trials: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write trials, as the API returns them, as Parquet. Raises ``InvalidInput`` without pyarrow."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InvalidInput("Parquet needs pyarrow, which is not installed; use --format csv") from None
    rows = [trial_row(trial) for trial in trials]
    columns = {name: _typed([row.get(name) for row in rows]) for name in columns_of(rows)}
    parquet.write_table(pyarrow.table(columns), str(path))


def trial_row(trial: Mapping[str, Any]) -> dict[str, Any]:
    """A trial of the API as one flat row: number, state, values, parameters and metrics, and then the rest.

    Its parameters are ``params.NAME``, of blocks ``params.layers.0.width``, its metrics ``metrics.NAME``. The plan is
    left out but for its words. Several objectives are ``values.0``, ``values.1``, … in their order.
    """
    values = trial.get("values") or ()
    return {
        **{name: trial.get(name) for name in _FIRST},
        **({f"values.{index}": value for index, value in enumerate(values)} if len(values) > 1 else {}),
        **_flat("params", trial["params"]),
        **{f"metrics.{name}": value for name, value in trial.get("metrics", {}).items()},
        **{name: value for name, value in trial.items() if name not in _LEFT_OUT},
    }


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every column that any of these rows of ``trial_row`` has, in its order."""
    columns = dict.fromkeys(name for row in rows for name in row)

    def group(name: str) -> int:
        return next((place for place, start in enumerate(_GROUPS) if name.startswith(start)), len(_GROUPS))

    return [*_FIRST, *sorted((name for name in columns if name not in _FIRST), key=group)] if columns else []


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict | bool) else value


def _typed(values: list[Any]) -> list[Any]:
    """Values of one type, as a column of Parquet needs: their JSON if they have several."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} and len(kinds) == 2:
        return [None if value is None else float(value) for value in values]
    if len(kinds) <= 1 and not kinds & {list, dict}:
        return values
    return [None if value is None else json.dumps(value) for value in values]


def _flat(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {key: leaf for part, inner in value.items() for key, leaf in _flat(f"{name}.{part}", inner).items()}
    if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        return {key: leaf for index, inner in enumerate(value) for key, leaf in _flat(f"{name}.{index}", inner).items()}
    return {name: value}
