"""Records of GPUs are scored without one."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.estimating.case import Case
from benchmarks.estimating.gpu import Observation, search
from benchmarks.gpu_estimators import GpuCase, Predicted, cases, predict, score
from estimators.devices.kind import DeviceKind, Rate
from estimators.model import MIB

KIND = DeviceKind("H100", {"matmul": Rate(0.0, 1e-12, 0.0)}, "measured, made up")
SMALL = GpuCase(Case("gpt", 4, {"depth": 4, "width": 128, "context": 64}))
RECORDS = sorted(Path(__file__).parents[2].glob("docs/benchmarks/gpu/*.json"))


def record(*seen: dict[str, Any]) -> dict[str, Any]:
    cases = [{"case": vars(SMALL.case), "expandable": False, **entry} for entry in seen]
    return {
        "date": "2026-01-01",
        "product": "NVIDIA H100 80GB HBM3",
        "driver": "1",
        "kind": asdict(KIND),
        "cases": cases,
    }


def seen_as(predicted: Predicted, times: float, attempts: list[tuple[int, bool]]) -> dict[str, Any]:
    """The observation of a GPU that takes ``times`` as much memory and time as predicted."""
    active, reserved = (int(size * times) for size in (predicted.active_bytes, predicted.reserved_bytes))
    return asdict(Observation(active, reserved, 64 * MIB, 400 * MIB, attempts, predicted.step_seconds * times))


def test_a_search_tries_what_is_asked_for_and_halves_the_rest() -> None:
    attempts = search(lambda capacity: capacity >= 700 * MIB, [500 * MIB, 900 * MIB], 400 * MIB, 1000 * MIB)
    assert attempts[:2] == [(500 * MIB, False), (900 * MIB, True)]
    assert 700 * MIB <= min(tried for tried, ran in attempts if ran) <= 702 * MIB
    assert max(tried for tried, ran in attempts if not ran) < 700 * MIB and len(attempts) < 12


@pytest.mark.full
def test_a_record_is_scored_by_the_present_estimator(capsys: pytest.CaptureFixture[str]) -> None:
    predicted = predict(SMALL, KIND)
    least = predicted.smallest_capacity_bytes
    assert 0 < predicted.active_bytes <= least <= predicted.reserved_bytes and predicted.step_seconds > 0
    right = seen_as(predicted, 1.0, [(least * 97 // 100, False), (least * 103 // 100, True), (least, True)])
    missed = seen_as(predicted, 1.25, [(least * 97 // 100, False), (least * 103 // 100, False), (2 * least, True)])
    values = score(json.loads(json.dumps(record({"seen": right}, {"seen": missed}, {"failure": "TimeoutError: slow"}))))
    assert values["gpu_cases"] == 2 and values["gpu_oom_decisions"] == 4
    assert values["gpu_oom_right_pct"] == 75 and values["gpu_oom_missed"] == 1
    assert values["gpu_active_median_pct"] == pytest.approx(10, abs=0.1)  # of 0 and 20 %
    assert values["gpu_capacity_p95_pct"] == pytest.approx(50) and values["gpu_context_max_pct"] == pytest.approx(20)
    printed = capsys.readouterr().out
    assert "TimeoutError: slow" in printed
    assert printed.count("runs") == 1
    assert str(SMALL) in printed


def test_there_are_many_models_and_each_has_a_name_of_its_own() -> None:
    names = list(map(str, cases()))
    assert len(set(names)) == len(names)
    assert len({case.case.model for case in cases()}) >= 8


@pytest.mark.parametrize("file", RECORDS, ids=lambda file: file.stem)
def test_the_present_estimator_is_as_good_on_each_gpu_that_was_recorded(file: Path) -> None:
    values = score(json.loads(file.read_text()))
    assert values["gpu_active_median_pct"] <= 1 and values["gpu_capacity_median_pct"] <= 3
