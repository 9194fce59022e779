"""A study's workload and how often it reports."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from estimators.model import Plan
from scamp_service.errors import InvalidInput
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
    assert (spec.budget.length, spec.budget.unit, spec.budget.steps) == (12, "epoch", None)
    assert parse_study(study(budget={"epochs": "1e1"})).budget.length == 10
    assert StudySpec.model_validate(spec.to_json()) == spec
    assert StudySpec.model_validate(spec.as_given()) == spec


@pytest.mark.parametrize(("trials", "population"), [(1, 4), (50, 10), (100, 14), (400, 28), (2000, 50)])
def test_a_population_follows_from_the_budget_and_is_kept_when_that_is_extended(trials: int, population: int) -> None:
    with_population = study(search={"sampler": "nsga2"}, budget={"trials": trials})
    stored = parse_study(with_population).to_json()
    assert stored["search"]["sampler"] == {"name": "nsga2", "population_size": population}
    extended = parse_study({**stored, "budget": {**stored["budget"], "trials": 10 * trials}})
    assert extended.to_json()["search"] == stored["search"]
    assert parse_study(with_population).as_given()["search"] == {"sampler": "nsga2"}, "its author has named none"


def test_evolution_draws_half_of_its_population_and_sizes_that_are_given_stay() -> None:
    def sizes(budget: int = 100, **fields: Any) -> tuple[int, int]:
        search = {"one_shot": fields.pop("one_shot", None), "sampler": {"name": "evolution", **fields}}
        spec = parse_study(study(search=search, budget={"trials": budget}, stopping={"rule": "none"}))
        sampler: Any = spec.search.sampler
        return sampler.population_size, sampler.sample_size

    assert sizes() == (14, 7)
    assert sizes(population_size=8) == (8, 4)
    assert sizes(sample_size=30) == (30, 30)
    assert sizes(sample_size=3) == (14, 3)
    assert sizes(34, one_shot={"candidates": 30, "best": 3}) == (8, 4), "the sampler proposes the candidates alone"


DEADLOCK = "0F0 0B0 0F1 0B1; 1F1 1B1 1F0 1B0"


def test_a_study_may_give_the_plan_of_its_candidates() -> None:
    plan_fields = {"micro_batch": 2, "num_micro_batches": 4, "pp": 2, "cut": [3, 5]}
    spec = parse_study(study(plan=plan_fields))
    assert spec.given_plan == Plan(2, 4, pp=2, cut=(3, 5))
    assert StudySpec.model_validate(spec.to_json()).given_plan == spec.given_plan
    page = (ROOT / "docs" / "plan.md").read_text()
    on_page = yaml.safe_load(page.partition("### Train with unlike shares")[2].split("```")[1].removeprefix("yaml"))
    uneven = parse_study(study(**on_page)).given_plan
    assert uneven == Plan(5, 2, dp_shard=2, shares=(5, 3)) and uneven.batch == on_page["fixed"]["batch"]
    of_passes = yaml.safe_load(page.partition("### Give the order of passes")[2].split("```")[1].removeprefix("yaml"))
    ordered = parse_study(study(**of_passes)).given_plan
    assert ordered is not None and (ordered.num_stages, ordered.batch) == (2, of_passes["fixed"]["batch"])
    for wrong, words in (
        ({"micro_batch": 2, "num_micro_batches": 2, "pp": 2, "schedule": DEADLOCK}, "deadlock: rank 0 waits"),
        ({"micro_batch": 2, "stages": 2}, "a plan has no stages"),
        ({"pp": 2}, "needs micro_batch"),
        ({"micro_batch": 2, "cut": [3, 5]}, "needs pp > 1"),
        ({"micro_batch": 2, "cut": "3-5", "pp": 2}, "cut of a plan cannot be"),
    ):
        with pytest.raises(InvalidInput, match=words):
            parse_study(study(plan=wrong))


@pytest.mark.parametrize(("said", "members"), [("auto", 12), ("off", 1), (False, 1), (5, 5)])
def test_a_pack_may_be_said_by_a_word_which_yaml_may_read_as_a_truth_value(said: object, members: int) -> None:
    assert parse_study(study(pack=said)).pack == members
