"""A user's file: the networks of the table of learning curves, as a workload that can be traced."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from workloads.protocol import Workload


class Digits(Workload):
    """Multilayer perceptrons on scikit-learn's 1,797 handwritten digits, 597 of them held out."""

    num_train, num_eval, batch = 1200, 597, 32

    def __init__(self, params: dict[str, Any]) -> None:
        super().__init__(params)
        digits = load_digits()
        self.images = torch.tensor(digits.data, dtype=torch.float32) / 16
        self.labels = torch.tensor(digits.target)

    def build_model(self) -> nn.Module:
        layers, sizes = list[nn.Module](), [64, *[self.params["width"]] * self.params["depth"]]
        for before, after in itertools.pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ReLU(), nn.Dropout(self.params["dropout"])]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], 10))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=self.params["lr"])

    def train_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.images[indices], self.labels[indices]

    def eval_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.train_batch(1200 + indices)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        return {"accuracy": (model(batch[0]).argmax(-1) == batch[1]).float()}
