"""The peak of an attempt is the largest of its steps, and one of frozen parameters says nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from estimators.model import MIB, Plan

LATE = """
import torch
from torch import nn
from workloads.protocol import Workload


class Late(Workload):
    num_train = num_eval = 24

    def build_model(self):
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        for parameter in model[0].parameters():
            parameter.requires_grad_(not self.params.get("thaws_at"))
        return model

    def lengths(self, split):
        return [2000 if number == 2 * self.params.get("longest_at", 0) else 10 + number for number in range(24)]

    def order(self, epoch, generator):
        return torch.arange(24)

    def train_batch(self, indices):
        lengths = torch.tensor(self.lengths("train"))[indices]
        return torch.ones(len(indices), int(lengths.max()), 64)

    def eval_batch(self, indices):
        return torch.ones(len(indices), 4, 64)

    def on_step(self, step, steps, optimizer):
        if step == self.params.get("thaws_at"):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.requires_grad_(True)

    def loss(self, model, batch):
        return model(batch).square().mean()

    def evaluate(self, model, batch):
        return {"loss": model(batch).square().mean((1, 2))}
"""
PLANS = [Plan(2), Plan(1, dp_shard=2)]


@pytest.fixture
def peak(ranks: Any, tmp_path: Path) -> Any:
    (tmp_path / "late.py").write_text(LATE)

    def measured(plan: Plan, steps: int = 9, **params: int) -> int:
        options = {"workload": "late.py:Late", "code_dir": str(tmp_path), "metric": "loss"}
        answer = ranks.train(plan, steps, params={"batch": 2, **params}, **options)[0]
        assert answer["error"] == "", answer["traceback"]
        return int(answer["peak"])

    return measured


@pytest.mark.full
@pytest.mark.sample
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_the_peak_is_that_of_the_longest_samples_whenever_they_come(peak: Any, plan: Plan) -> None:
    early, late = peak(plan, longest_at=2), peak(plan, longest_at=6)
    assert late == pytest.approx(early, rel=0.01) and late > MIB > peak(plan, steps=5, longest_at=6)


def test_the_peak_is_measured_once_all_that_is_predicted_to_train_does(peak: Any) -> None:
    assert peak(Plan(2), thaws_at=5) == peak(Plan(2), thaws_at=1) > 0
    assert peak(Plan(2), steps=5, thaws_at=5) == 0, "nothing that was predicted has been measured"
