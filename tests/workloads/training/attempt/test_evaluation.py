"""An evaluation that needs much more memory than a step, from its trace to ranks under the budget of its plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from estimators.model import MIB, Layout, Plan
from estimators.trace import profile_of
from estimators.tracing.tracer import trace
from placement.model import VIRTUAL_KIND, Cluster, Device
from placement.planning.answers import ChosenPlan
from placement.planning.planner import choose
from placement.planning.question import Question
from workloads.loading import load_workload
from workloads.sandbox.recipe import recipe_of

HEAVY = """
import torch
from torch import nn
from workloads.protocol import Workload

class Heavy(Workload):
    num_train, num_eval, default_batch = 64, 40, 16
    def build_model(self): return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    def train_batch(self, indices): return torch.sin(indices[:, None] + torch.arange(64.0))
    eval_batch = train_batch
    def loss(self, model, batch): return (model(batch) - batch).square().mean()
    def evaluate(self, model, batch):
        pairs = model(batch)[:, :, None] * torch.linspace(0, 1, 12000)  # 3 MiB a sample, and once more
        return {"score": pairs.tanh().mean((1, 2))}
"""


@pytest.mark.parametrize("device_mib", [24, 12])
def test_an_evaluation_larger_than_a_step_is_sized_and_trains_within_its_budget(
    ranks: Any, tmp_path: Path, device_mib: int
) -> None:
    (tmp_path / "heavy.py").write_text(HEAVY)
    traced = trace(recipe_of(load_workload("heavy.py:Heavy", tmp_path)({})), Layout(), 16)
    assert traced.evaluation is not None and traced.evaluation.peak_bytes(16) > 90 * MIB
    devices = Cluster((Device("d", "n", 0, VIRTUAL_KIND, device_mib),))
    answer = choose(Question(profile_of({Layout(): traced}), 16, devices))
    if device_mib == 12:
        assert "to evaluate 1 sample at a time" in str(answer)
        return
    assert isinstance(answer, ChosenPlan)
    assert (answer.plan.micro_batch, answer.plan.evaluation_batch) == (16, 1)
    options = {"workload": "heavy.py:Heavy", "code_dir": str(tmp_path), "metric": "score", "params": {}}
    (under,) = ranks.train(answer.plan, budget_bytes=answer.prediction.reserved_mib * MIB, **options)
    (alone,) = ranks.train(Plan(16), budget_bytes=answer.prediction.reserved_mib * MIB, **options)
    assert "during an evaluation" in alone["message"]
    (free,) = ranks.train(Plan(16), **options)
    assert under["message"] == "" and under["reports"]
    for (_, values), (_, expected) in zip(under["reports"], free["reports"], strict=True):
        assert values == pytest.approx(expected, abs=1e-6), "metrics do not depend on the micro-batch"
