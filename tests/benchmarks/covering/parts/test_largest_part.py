"""The largest micro-batch must exist and run, and the models are hard to fit."""

from __future__ import annotations

import pytest

from benchmarks.covering import plain
from benchmarks.covering.parts import largest_part
from benchmarks.covering.parts.largest_part import Result
from benchmarks.running.results import Finding


def test_there_are_enough_models_of_the_kinds_that_are_hard_to_fit() -> None:
    every = largest_part.cases(False, 0)
    assert len(every) >= 20 and len({str(case) for case in every}) == len(every)
    models = {case.params["model"] for case in every}
    assert models <= set(plain.MODELS)
    assert models >= {"lstm", "gru", "convnext", "positional_conv", "transformer", "unet_channels_last"}
    options = {(name, value) for case in every for name, value in case.params.items()}
    assert options >= {("ema", True), ("optimizer", "SparseAdam"), ("arithmetic", "bf16"), ("arithmetic", "amp")}


def test_the_largest_micro_batch_must_exist_and_run() -> None:
    results = [Result(300, 8, 280, ""), Result(300, 8, 280, "OutOfMemory"), Result(300, 0, 0, "none fits")]
    values = largest_part.figures(results)
    assert values == {"largest_cases": 3, "largest_fits_pct": pytest.approx(100 / 3)}
    assert [result.row()[-1] for result in results] == ["fits", "OutOfMemory", "none fits"]


def test_runs_that_ended_early_are_named() -> None:
    ends = [("a", ""), ("b", "OutOfMemory")]
    findings = [Finding("largest", name, ["row"], {"end": end}) for name, end in ends]
    assert largest_part.notes(findings) == ["  b: OutOfMemory"]


def test_a_case_names_its_model_and_its_limit() -> None:
    assert str(largest_part.cases(True, 0)[0]) == "mlp SGD in 200 MiB"
