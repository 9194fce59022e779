"""`scamp simulate` replays a study, and a mistake gets one line."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from scamp.cli.what_if import what_if_table
from scamp_service.settings import ROOT
from tests.conftest import Scamp

pytestmark = pytest.mark.usefixtures("warm_traces")

SMALL = """
name: small
workload: vit_digits
objective: {metric: accuracy, direction: maximize}
space: {lr: {low: 1.0e-4, high: 1.0e-2, log: true}}
fixed: {depth: 2, width: 32, batch: 16}
search: {sampler: random, seed: 3}
stopping: {rule: none}
budget: {trials: 6, steps: 100}
"""


@pytest.mark.full
def test_a_study_is_replayed_and_drawn(tmp_path: Path, scamp: Scamp) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    chart = tmp_path / "study.html"
    arguments = ("simulate", str(tmp_path / "small.yaml"), "--cluster", "2x2xV100-16")
    done = scamp(tmp_path / "data", *arguments, "--gantt", str(chart), COLUMNS="80")
    assert done.returncode == 0, done.stderr
    rows = dict(line.rsplit("  ", 1) for line in done.stdout.splitlines()[:5])
    assert {name.strip() for name in rows} == {
        *("makespan", "device-hours", "devices busy", "in communication", "trials completed")
    }
    assert "assumed: seconds of a step are predicted" in done.stdout
    assert chart.read_text().count("<title>study 1, trial") == 6
    replayed = json.loads(scamp(tmp_path / "data", *arguments, "--json", "--policy", "pack,static-4").stdout)
    assert all(replay["trials"] == {"COMPLETED": 6} and len(replay["attempts"]) == 6 for replay in replayed.values())
    assert replayed["static-4"]["makespan_seconds"] > replayed["pack"]["makespan_seconds"]


def test_the_answer_of_what_if_is_a_table_of_both() -> None:
    forecast = {"makespan_seconds": 3600.0, "device_hours": 4.0, "device_hours_by_kind": {"T4": 4.0}, "num_trials": 3}
    table = what_if_table(
        {"added": {"T4": 2}, "now": {**forecast, "num_never": 1}, "then": {**forecast, "num_never": 0}}
    )
    console = Console(width=60, record=True, file=StringIO())
    console.print(table)
    lines = [line.split("  ") for line in console.export_text().splitlines()]
    assert "with 2 × T4" in lines[0][-1]
    assert lines[1][0] == "all done in"
    assert lines[-1][0] == "that fit nowhere"


@pytest.mark.full
def test_a_mistake_gets_one_line(tmp_path: Path, scamp: Scamp) -> None:
    study = str(ROOT / "examples" / "digits.yaml")
    failed = scamp(tmp_path, "simulate", study, "--cluster", "8xV1000")
    assert failed.returncode == 2 and "unknown device 'V1000'" in failed.stderr
    failed = scamp(tmp_path, "simulate", study, "--cluster", "8xV100-16", "--policy", "pack,best")
    assert failed.returncode == 2 and "unknown policy 'best'" in failed.stderr
    failed = scamp(tmp_path, "simulate", study, "--cluster", "many")
    assert failed.returncode == 2 and "NODESxDEVICESxKIND" in failed.stderr
    failed = scamp(tmp_path, "simulate", study, "--cluster", "4xV100-16", "--gantt", "a.png")
    assert failed.returncode == 2 and "must end with .svg or .html" in failed.stderr
