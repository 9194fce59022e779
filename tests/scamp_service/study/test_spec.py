"""What a study may name as its workload, and how often it reports."""

from __future__ import annotations

import pytest

from scamp_service.study.parse import parse_study
from tests.studies import study


@pytest.mark.parametrize("workload", ["digits_vit", "model.py:MyWorkload", "models/vit.py:ViT"])
def test_a_workload_is_built_in_or_a_class_of_a_file_of_the_study(workload: str) -> None:
    assert parse_study(study(workload=workload)).workload == workload


def test_reports_come_ten_times_unless_said_otherwise() -> None:
    assert parse_study(study(budget={"steps": 95})).report_every == 10
    assert parse_study(study(budget={"steps": 3})).report_every == 1
    assert parse_study(study(budget={"steps": 95, "report_every": 7})).report_every == 7
