"""A wide MLP of residual blocks on random numbers, as a workload of a user's own, for the benchmark of screening."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads.protocol import Workload


class WideMlp(Workload):
    """Parameters: ``depth``, ``width``, ``inputs``. Metric: ``loss``."""

    default_batch = 64
    num_train, num_eval = 4096, 64

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__(params)
        self.inputs = int(params.get("inputs", 64))

    def build_model(self) -> nn.Module:
        return Mlp(self.inputs, int(self.params.get("width", 256)), int(self.params.get("depth", 2)))

    def train_batch(self, indices: Tensor) -> Tensor:
        return torch.zeros(len(indices), self.inputs)

    eval_batch = train_batch

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return functional.mse_loss(model(batch), batch)

    def evaluate(self, model: nn.Module, batch: Tensor) -> Mapping[str, Tensor]:
        return {"loss": (model(batch) - batch).square().mean(1)}

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        assert isinstance(model, Mlp)
        return list(model.layers)


class Mlp(nn.Module):
    """Numbers [n, inputs] → numbers of that shape."""

    def __init__(self, inputs: int, width: int, depth: int) -> None:
        super().__init__()
        self.enter = nn.Linear(inputs, width)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth))
        self.leave = nn.Linear(width, inputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for layer in self.layers:
            x = x + layer(x)
        output: Tensor = self.leave(x)
        return output
