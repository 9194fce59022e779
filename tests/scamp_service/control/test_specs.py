"""Rules of studies are made once, and again when a user has extended the budget or changed the priority."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scamp_service.control.specs import Specs
from scamp_service.lifecycle import StudyState
from tests.quick_store import empty_store
from tests.services.serving import full_spec


def test_rules_are_made_again_only_when_the_budget_or_the_priority_has_changed() -> None:
    store = empty_store()
    study = store.studies.create(full_spec(), now=0.0)
    specs = Specs()
    rules = specs.rules(study)
    again = replace(store.studies.get(study.id), state=StudyState.STOPPING)
    assert specs.rules(again) is rules and specs.read(again) is specs[study.id]
    budget = rules.budget.model_copy(update={"trials": rules.budget.trials + 2})
    store.requests.extend(study.id, {"trials": budget.trials}, now=1.0)
    assert specs.rules(store.studies.get(study.id)) == replace(rules, budget=budget)
    store.requests.prioritize(study.id, 7, now=1.0)
    sharing = replace(rules.sharing, priority=7)
    assert specs.rules(store.studies.get(study.id)) == replace(rules, budget=budget, sharing=sharing)


def test_ended_studies_are_forgotten() -> None:
    store = empty_store()
    studies = [store.studies.create(full_spec(), now=0.0) for _ in range(2)]
    specs = Specs()
    rules = [specs.rules(study) for study in studies]
    specs.forget_ended({studies[1].id})
    assert specs.rules(studies[1]) is rules[1]
    with pytest.raises(KeyError):
        specs[studies[0].id]
