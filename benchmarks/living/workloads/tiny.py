"""A linear regression: a workload of a user's file whose step takes no time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads.protocol import Batch, Workload


class Tiny(Workload):
    """Learns the sum of four numbers."""

    num_train, num_eval, default_batch = 64, 16, 8

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__(params)
        self.inputs = torch.rand(self.num_train + self.num_eval, 4, generator=torch.Generator().manual_seed(0))

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

    def train_batch(self, indices: Tensor) -> Batch:
        inputs = self.inputs[indices]
        return inputs, inputs.sum(1)

    def eval_batch(self, indices: Tensor) -> Batch:
        return self.train_batch(indices + self.num_train)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return functional.mse_loss(model(batch[0]).squeeze(1), batch[1])

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        return {"loss": (model(batch[0]).squeeze(1) - batch[1]) ** 2}
