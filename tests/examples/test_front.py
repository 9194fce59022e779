"""The example of several objectives: candidates are traced, those within the bound train, and a front is left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from estimators.model import MIB
from placement.planning.answers import ChosenPlan
from scamp_service.lifecycle import TrialState
from scamp_service.search.proposals import Search
from scamp_service.sizing.estimate import Estimator, equal_devices
from scamp_service.sizing.tracing.options import Tracing
from scamp_service.study.parse import parse_study
from scamp_service.study.user_code.bundling import bundle_code
from scamp_service.study.values import Params
from tests.scamp_service.search.studies import Trial
from workloads.loading import load_workload

pytestmark = pytest.mark.full

STUDY = Path(__file__).parents[2] / "examples" / "front.yaml"
SPEC = parse_study(STUDY.read_text())
NUM_TRIALS, NUM_STEPS = 4, 3


def accuracy(params: Params) -> float:
    """Share of held-out digits that are right after a few steps."""
    torch.manual_seed(0)
    workload = load_workload(SPEC.workload, STUDY.parent)(params)
    model = workload.build_model()
    optimizer = workload.optimizer(model)
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        workload.loss(model, workload.train_batch(torch.arange(32) + 32 * step)).backward()
        optimizer.step()
    measured = workload.evaluate(model, workload.eval_batch(torch.arange(297)))
    assert isinstance(measured, Mapping)
    return float(measured["accuracy"].mean())


@pytest.mark.usefixtures("warm_traces")
def test_the_example_finds_a_front_of_accuracy_and_predicted_memory(tmp_path: Path) -> None:
    search, trials = Search(SPEC), list[Trial]()
    with Estimator(SPEC.workload, bundle_code(STUDY, SPEC.workload), Tracing(tmp_path)) as estimator:
        for number in range(NUM_TRIALS):
            (params,) = search.propose(trials, number, 1)
            plan = estimator.plan(params, equal_devices(4, 96))
            assert isinstance(plan, ChosenPlan)
            trial = Trial(number, params, quantities={"peak_mib": plan.prediction.expected_bytes / MIB})
            if SPEC.predicted.why_not(trial.quantities):
                trials.append(replace(trial, state=TrialState.INFEASIBLE))
            else:
                value = accuracy(params)
                trials.append(replace(trial, state=TrialState.COMPLETED, step=60, value=value, values=(value, None)))
    objectives = SPEC.every_objective
    front = objectives.front_of(trials)
    assert front and all(SPEC.predicted.why_not(trial.quantities) == "" for trial in front)
    best = [objectives.values_of(trial) or () for trial in front]
    for trial in trials:
        if trial.state is TrialState.COMPLETED and (point := objectives.values_of(trial)):
            assert any(point == values or objectives.dominates(values, point) for values in best), trial
