"""A study's workload and how often it reports."""

from __future__ import annotations

import pytest
import yaml

from scamp_service.settings import ROOT
from scamp_service.study.parse import parse_study
from scamp_service.study.spec import StudySpec
from tests.studies import study


@pytest.mark.parametrize("workload", ["digits_vit", "model.py:MyWorkload", "models/vit.py:ViT"])
def test_a_workload_is_built_in_or_a_class_of_a_file_of_the_study(workload: str) -> None:
    assert parse_study(study(workload=workload)).workload == workload


def test_what_was_given_is_the_same_study_without_its_defaults() -> None:
    for name in ("digits", "convnext", "shapes", "conditional"):
        text = (ROOT / "examples" / f"{name}.yaml").read_text()
        spec = parse_study(text)
        assert parse_study(spec.as_given()) == spec
        assert set(spec.as_given()) == set(yaml.safe_load(text))


def test_reports_come_ten_times_unless_said_otherwise() -> None:
    assert parse_study(study(budget={"steps": 95})).report_every == 10
    assert parse_study(study(budget={"steps": 3})).report_every == 1
    assert parse_study(study(budget={"steps": 95, "report_every": 7})).report_every == 7
    assert parse_study(study(budget={"epochs": 95})).report_every == 1


def test_a_trial_of_epochs_counts_its_steps_in_epochs_also_when_its_spec_is_read_again() -> None:
    spec = parse_study(study(budget={"epochs": 12}))
    assert (spec.budget.steps, spec.budget.epochs) == (12, 12)
    assert StudySpec.model_validate(spec.to_json()) == spec
    assert StudySpec.model_validate(spec.as_given()) == spec
