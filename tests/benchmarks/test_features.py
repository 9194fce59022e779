"""The table of features: every plan trains the same batch, and every workload can be loaded."""

from __future__ import annotations

import pytest

from benchmarks.features.drawn import drawn
from benchmarks.features.feature import BATCH, Feature
from benchmarks.features.table import FEATURES
from workloads.loading import load_workload
from workloads.training.data.data_checks import expect_data, expect_order

DRAWN = list(drawn(0, 30))


def test_names_differ_and_draws_repeat() -> None:
    assert len({feature.name for feature in FEATURES}) == len(FEATURES)
    assert list(drawn(0, 30)) == DRAWN != list(drawn(1, 30))
    assert {feature.workload for feature in DRAWN} == {f"drawn.py:Drawn{kind}" for kind in ("", "InOrder", "ByIndex")}


@pytest.mark.parametrize("feature", [*FEATURES, *DRAWN[:8]], ids=lambda feature: feature.name)
def test_plans_have_one_batch_and_the_workload_accepts_its_parameters(feature: Feature) -> None:
    assert {plan.batch for plan in feature.plans} == {BATCH}
    assert all(plan.world_size <= 4 for plan in feature.plans)
    workload = load_workload(feature.workload, feature.folder)(dict(feature.params))
    expect_data(workload)
    expect_order(workload, BATCH)
