"""Exports have a row for each trial and a column for each parameter, in every format."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from pyarrow import parquet

from scamp.export import columns_of, csv_parts, trial_row, write_json_lines, write_parquet

TRIALS: list[dict[str, Any]] = [
    {
        "id": 7,
        "study_id": 1,
        "number": 0,
        "state": "COMPLETED",
        "origin": "SEARCH",
        "params": {"lr": 0.1, "act": "relu", "layers": [{"op": "conv", "width": 8}, {"op": "id"}], "kernel": [3, 3]},
        "plan": {"micro_batch": 8},
        "value": 0.5,
        "metrics": {},
        "healed": False,
    },
    {
        "id": 8,
        "study_id": 1,
        "number": 1,
        "state": "RUNNING",
        "origin": "EXTERNAL",
        "params": {"lr": 1, "act": None, "depth": 3},
        "plan": None,
        "value": None,
        "metrics": {"loss": 0.7, "train_loss": 0.2},
        "healed": False,
    },
]


def test_csv_has_a_column_for_each_parameter() -> None:
    rows = [trial_row(trial) for trial in TRIALS]
    text = "".join(csv_parts(columns_of(rows), [rows[:1], rows[1:]]))
    first, second = csv.DictReader(io.StringIO(text))
    assert list(first)[:5] == ["number", "state", "value", "params.lr", "params.act"]
    assert list(first)[-5:] == ["params.depth", "metrics.loss", "metrics.train_loss", "origin", "healed"]
    assert (first["metrics.loss"], second["metrics.loss"]) == ("", "0.7")
    assert (first["params.layers.0.width"], first["params.kernel"], first["params.depth"]) == ("8", "[3, 3]", "")
    assert (second["params.lr"], second["value"], second["params.depth"]) == ("1", "", "3")
    assert "id" not in first and "plan" not in first


def test_json_lines_are_the_trials_of_the_api() -> None:
    stream = io.StringIO()
    write_json_lines(TRIALS, stream)
    assert [json.loads(line) for line in stream.getvalue().splitlines()] == TRIALS


def test_parquet_has_columns_of_one_type(tmp_path: Path) -> None:
    write_parquet(TRIALS, tmp_path / "trials.parquet")
    rows = parquet.read_table(tmp_path / "trials.parquet").to_pylist()
    assert [row["params.lr"] for row in rows] == [0.1, 1.0]
    assert [row["params.kernel"] for row in rows] == ["[3, 3]", None]
    assert [row["value"] for row in rows] == [0.5, None]
