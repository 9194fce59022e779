"""A user's file: a small network with AdamW, warm-up and decay, whose learning rate depends on all steps."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads.protocol import Workload


class Warm(Workload):
    """Classifies noisy points of a spiral."""

    num_train, num_eval = 256, 64

    def __init__(self, params: dict[str, float]) -> None:
        super().__init__(params)
        source = torch.Generator().manual_seed(0)
        self.x = torch.randn(320, 16, generator=source)
        self.y = (self.x[:, :4].prod(1) > 0).long()

    def build_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(16, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2)
        )

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=self.params["lr"])

    def on_step(self, step: int, steps: int, optimizer: torch.optim.Optimizer) -> None:
        """Warm up over a tenth of all steps, then fall to zero."""
        share = min((step + 1) / (0.1 * steps), (steps - step) / steps)
        for group in optimizer.param_groups:
            group["lr"] = self.params["lr"] * share

    def train_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.x[indices], self.y[indices]

    def eval_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.train_batch(256 + indices)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        return {"nll": functional.cross_entropy(model(batch[0]), batch[1], reduction="none")}
