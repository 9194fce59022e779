"""Writes the trials of a study as CSV, JSON lines or Parquet, with the columns of ``client.trial_row``."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from scamp.client import columns_of, trial_row
from scamp.errors import InvalidInput


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
