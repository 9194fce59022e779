"""Ranks with parts of matrices update them as one process does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from estimators.model import Plan

MUON = """
import torch
from torch import nn
from torch.nn import functional
from scamp import Workload

POINTS = torch.randn(64, 48, generator=torch.Generator().manual_seed(0))


class Own(Workload):
    num_train, num_eval = 64, 16
    def build_model(self):
        return nn.Sequential(nn.Linear(48, 64, bias=False), nn.Tanh(), nn.Linear(64, 48, bias=False))
    def optimizer(self, model): return torch.optim.Muon(model.parameters(), 0.02)
    def train_batch(self, indices): return POINTS[indices]
    eval_batch = train_batch
    def loss(self, model, x): return functional.mse_loss(model(x), x)
    def evaluate(self, model, x): return {"loss": (model(x) - x).square().mean(1)}
"""


@pytest.mark.sample
@pytest.mark.full
def test_muon_updates_matrices_that_ranks_divide(ranks: Any, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(MUON)
    options = {"workload": "own.py:Own", "code_dir": str(tmp_path), "params": {"batch": 32}, "steps": 4}
    expected = dict(ranks.curve(Plan(32), **options))
    assert expected[4]["loss"] < expected[2]["loss"]
    for step, values in ranks.curve(Plan(16, dp_shard=2), **options):
        assert values == pytest.approx(expected[step], abs=1e-6)
