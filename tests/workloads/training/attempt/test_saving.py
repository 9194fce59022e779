"""The weights of a checkpoint, as users download them, are those that its step's metrics were measured with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from estimators.model import Candidate, Plan
from tests.workloads.one_rank import Collected
from workloads.loading import load_workload
from workloads.protocol import Workload
from workloads.training.attempt.job import TrainingJob
from workloads.training.checkpoints import checkpoint
from workloads.training.checkpoints.name import CheckpointName
from workloads.training.runtime import train

STEPS, NAME = 6, "normed.py:Normed"
CODE = """
import torch
from torch import nn
from workloads.protocol import Workload

class Normed(Workload):
    num_train = num_eval = 64
    default_batch = 16

    def build_model(self):
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))

    def train_batch(self, indices):
        x = torch.linspace(-2, 3, 4 * 64).view(64, 4)[indices].sin()
        return x, x.sum(1, keepdim=True).cos()

    eval_batch = train_batch

    def loss(self, model, batch):
        return (model(batch[0]) - batch[1]).square().mean()

    def evaluate(self, model, batch):
        return {"loss": (model(batch[0]) - batch[1]).square().flatten(1).mean(1)}

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=self.params["lr"])
"""


def measured(workload: Workload, weights: dict[str, Tensor]) -> float:
    model = workload.build_model().eval()
    model.load_state_dict(weights)
    with torch.no_grad():
        values: Any = workload.evaluate(model, workload.eval_batch(torch.arange(workload.num_eval)))
        return float(values["loss"].mean())


@pytest.mark.parametrize("best_of", ["", "minimize"])
@pytest.mark.parametrize("averages", [{}, {"ema_decay": 0.7}, {"swa_start": 2}], ids=str)
def test_weights_of_a_checkpoint_give_the_metric_of_its_step(
    tmp_path: Path, averages: dict[str, Any], best_of: str
) -> None:
    (tmp_path / "normed.py").write_text(CODE)
    params = {"lr": 0.9, "batch": 16, **averages}
    reporter = Collected(None)
    job = TrainingJob(
        Candidate(NAME, None, params), tmp_path, Plan(16), 0, STEPS, 1, None, tmp_path, 1, None, ["loss"],
        best_of=best_of,
    )  # fmt: skip
    assert train(job, 0, 1, None, reporter) == "done"
    losses = {step: values["loss"] for step, values in reporter.reports}
    step = min(losses, key=losses.__getitem__) if best_of else STEPS
    assert (step < STEPS) == bool(best_of), "the best one is another one than the last"
    folder = CheckpointName(1, step).folder(tmp_path)
    workload = load_workload(NAME, tmp_path)(params)
    weights, raw = checkpoint.load_weights(folder), checkpoint.load_weights(folder, raw=True)
    assert (weights.step, weights.has_averages) == (step, bool(averages))
    assert measured(workload, weights.state) == pytest.approx(losses[step], rel=1e-6)
    assert (measured(workload, raw.state) != pytest.approx(losses[step], rel=1e-4)) == bool(averages)
    model: nn.Module = workload.build_model()
    checkpoint.load_whole(tmp_path, CheckpointName(1, step), model)
    assert measured(workload, dict(model.state_dict())) == pytest.approx(losses[step], rel=1e-6)
