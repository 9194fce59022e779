"""A convolutional network for two goals at once: more right answers, and less memory of a training step."""

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
        self.images = torch.tensor(digits.images, dtype=torch.float32)[order].unsqueeze(1) / 16
        self.labels = torch.tensor(digits.target)[order]

    def build_model(self) -> nn.Module:
        width, layers = self.params["width"], list[nn.Module]()
        for depth in range(self.params["depth"]):
            layers += [nn.Conv2d(width if depth else 1, width, 3, padding=1), nn.GELU()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=self.params["lr"])

    def train_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.images[indices], self.labels[indices]

    def eval_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.train_batch(1500 + indices)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        return functional.cross_entropy(model(images), labels)

    def evaluate(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        images, labels = batch
        return {"accuracy": (model(images).argmax(-1) == labels).float()}
