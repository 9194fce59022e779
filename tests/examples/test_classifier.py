"""The example of a training script that became a workload: every plan learns the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from estimators.model import Plan
from scamp_service.sizing.submission_check import check_workload
from scamp_service.study.parse import parse_study
from scamp_service.study.user_code.bundling import bundle_code
from tests.services.warm import Warm
from tests.workloads.conftest import Ranks

PORT = Path(__file__).parents[2] / "examples" / "ports" / "classifier"
STUDY = PORT / "study.yaml"


@pytest.fixture
def ranks(tmp_path: Path, warm: Warm) -> Iterator[Ranks]:
    started = Ranks(tmp_path, warm)
    yield started
    started.close()


@pytest.mark.full
def test_the_port_learns_the_same_under_every_plan(ranks: Ranks) -> None:
    fixed = parse_study(STUDY.read_text()).fixed
    options: dict[str, Any] = {
        "workload": "after.py:Digits",
        "code_dir": str(PORT),
        "params": {**fixed, "width": 16, "lr": 1e-2, "depth": 1, "warmup": 4, "dropout": 0.0, "precision": "fp32"},
        "metric": "f1",
    }
    single = ranks.curve(Plan(64), steps=40, report_every=20, **options)
    two = ranks.curve(Plan(16, 2, dp_shard=2), steps=40, report_every=20, **options)
    assert single[-1][1]["auc"] > 0.6  # 0.5 by chance
    for (_, values), (_, expected) in zip(two, single, strict=True):
        assert values == pytest.approx(expected, abs=1e-5)


@pytest.mark.full
@pytest.mark.usefixtures("warm_traces")
def test_the_study_is_accepted_and_its_metrics_are_known() -> None:
    spec = parse_study(STUDY.read_text())
    assert check_workload(spec, bundle_code(STUDY, spec.workload)) == []
