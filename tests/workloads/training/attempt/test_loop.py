"""The metrics that a training reports are those of its workload, plain and whole, beside the training losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from estimators.model import Plan

SOURCE = """
from decimal import Decimal
from enum import StrEnum

import torch
from torch import nn
from torch.optim import SGD
from workloads.protocol import Phase, Workload

class Name(StrEnum):
    ERROR = "error"

class Plain(Workload):
    num_train, num_eval, default_batch = 16, 8, 8
    def build_model(self): return nn.Linear(2, 1)
    def train_batch(self, indices): return indices[:, None].float().expand(-1, 2)
    eval_batch = train_batch
    def loss(self, model, batch): return model(batch).square().mean()
    def evaluate(self, model, batch): return {Name.ERROR: torch.full((len(batch),), 42.0)}, batch
    def summarize(self, outputs): return {"size": Decimal(len(outputs))}
    def on_evaluate(self, metrics): metrics["added"] = torch.tensor(3)

class TrainLoss(Plain):
    def summarize(self, outputs): return {"train_loss": 42.0}

class Twice(Plain):
    def summarize(self, outputs): return {"error": 0.0}

class Phased(Plain):
    def phases(self): return [Phase("generator", self.loss, lambda model: SGD(model.parameters(), 0.1))]
    def summarize(self, outputs): return {"generator_loss": 42.0}

class Odd(Plain):
    def on_evaluate(self, metrics): metrics["a\\ud800"] = 1.0
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("TrainLoss", "the workload names a metric 'train_loss', under which ScaMP reports the mean training loss"),
        ("Phased", "'generator_loss', under which ScaMP reports that of phase 'generator'"),
        ("Twice", "names two metrics 'error'"),
        ("Odd", "on_evaluate names a metric 'a\\ud800'"),
    ],
)
def test_a_metric_that_would_be_lost_or_cannot_be_stored_ends_the_training_in_words(
    ranks: Any, tmp_path: Path, name: str, words: str
) -> None:
    (tmp_path / "w.py").write_text(SOURCE)
    (ended,) = ranks.train(Plan(8), workload=f"w.py:{name}", code_dir=str(tmp_path), metric="error", params={})
    assert ended["error"] == "WorkloadError" and words in ended["message"]
    assert ended["reports"] == []


def test_metrics_are_reported_plain_whatever_their_classes(ranks: Any, tmp_path: Path) -> None:
    (tmp_path / "w.py").write_text(SOURCE)
    (ended,) = ranks.train(Plan(8), workload="w.py:Plain", code_dir=str(tmp_path), metric="error", params={})
    assert ended["message"] == ""
    for _, values in ended["reports"]:
        assert values.keys() == {"error", "size", "train_loss", "added"}
        assert (values["error"], values["size"], values["added"]) == (42.0, 8.0, 3.0)
