"""A small network on handwritten digits, trained by SGD with momentum, to compare ways to use larger batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from scamp import Workload


class Digits(Workload):
    """scikit-learn's 1,797 handwritten digits of 8×8 pixels, 297 of them held out."""

    num_train, num_eval = 1500, 297

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__(params)
        digits = load_digits()
        order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
        self.pixels = torch.tensor(digits.data, dtype=torch.float32)[order] / 16
        self.labels = torch.tensor(digits.target)[order]

    def build_model(self) -> nn.Module:
        width = self.params.get("width", 64)
        return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.params.get("lr", 0.05), momentum=0.9)

    def train_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.pixels[indices], self.labels[indices]

    def eval_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.train_batch(1500 + indices)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        pixels, labels = batch
        return functional.cross_entropy(model(pixels), labels)

    def evaluate(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        pixels, labels = batch
        return {"accuracy": (model(pixels).argmax(-1) == labels).float()}
