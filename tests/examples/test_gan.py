"""The example of two optimizers: it learns to draw digits, and its memory is predicted."""

from __future__ import annotations

from pathlib import Path

import pytest

from estimators.model import Candidate, Layout, Plan
from estimators.tracing.tracer import trace
from scamp_service.study.parse import parse_study
from tests.workloads.one_rank import Collected
from workloads.loading import load_workload
from workloads.sandbox.recipe import recipe_of
from workloads.training.attempt.job import TrainingJob
from workloads.training.runtime import train

EXAMPLES = Path(__file__).parents[2] / "examples"
SPEC = parse_study((EXAMPLES / "gan.yaml").read_text())


@pytest.mark.sample
@pytest.mark.full
def test_it_learns_to_draw_digits_in_the_memory_that_is_predicted(tmp_path: Path) -> None:
    params = {**SPEC.fixed, "width": 64, "lr": 2e-3}
    reporter = Collected(None)
    job = TrainingJob(
        Candidate(SPEC.workload, None, params), EXAMPLES, Plan(64), 0, 150, 50, None, tmp_path, 1, None, ["fooled"]
    )
    assert train(job, 0, 1, None, reporter) == "done"
    distances = [values["distance"] for _, values in reporter.reports]
    assert distances[-1] < 0.4 and distances[-1] < distances[0], distances
    recipe = recipe_of(load_workload(SPEC.workload, EXAMPLES)(params))
    assert trace(recipe, Layout(), 64).curve.peak_bytes(64) == pytest.approx(reporter.peak, rel=0.03)
