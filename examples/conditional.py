"""A network whose layers the search chooses one by one, with a search space that is written in Python.

``conditional.yaml`` has the same space in YAML; leave ``space`` out of it, and the one below is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from scamp import Workload


class Layer(nn.Module):
    """One layer of the search: a convolution, attention over all positions, or nothing; always with a skip."""

    def __init__(self, width: int, op: str, kernel: int = 3, heads: int = 1) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, width)
        self.conv = nn.Conv2d(width, width, kernel, padding=kernel // 2) if op == "conv" else None
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True) if op == "attention" else None

    def forward(self, x: Tensor) -> Tensor:
        """Images of shape [n, width, 8, 8] in and out."""
        y = self.norm(x)
        if self.conv is not None:
            y = functional.gelu(self.conv(y))
        if self.attention is not None:
            pixels = y.flatten(2).transpose(1, 2)
            y = self.attention(pixels, pixels, pixels, need_weights=False)[0].transpose(1, 2).reshape(x.shape)
        return x + y


class Net(nn.Module):
    """Layers of one width between a convolution and a linear classifier."""

    def __init__(self, width: int, layers: list[dict[str, Any]]) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.layers = nn.ModuleList(Layer(width, **layer) for layer in layers)
        self.last = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(x.mean((2, 3)))


class Digits(Workload):
    """scikit-learn's 1,797 handwritten digits of 8×8 pixels, 297 of them held out."""

    num_train, num_eval = 1500, 297

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__(params)
        digits = load_digits()
        order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
        self.images = torch.tensor(digits.images, dtype=torch.float32)[order].unsqueeze(1) / 16
        self.labels = torch.tensor(digits.target)[order]

    @classmethod
    def space(cls) -> Mapping[str, Any]:
        """The search space of studies that have none."""
        ops = {
            "op": {"choice": ["conv", "attention", "skip"]},
            "kernel": {"choice": [1, 3, 5], "when": {"op": "conv"}},
            "heads": {"ordinal": [1, 2, 4, 8], "when": {"op": "attention"}},
        }
        return {
            "width": {"low": 8, "high": 64, "step": 4},
            "layers": {"repeat": {"low": 1, "high": 4}, "each": ops},
            "optimizer": {"choice": ["sgd", "adamw"]},
            "momentum": {"low": 0.0, "high": 0.99, "when": {"optimizer": "sgd"}},
            "weight_decay": {"low": 1e-3, "high": 0.3, "log": True, "when": {"optimizer": "adamw"}},
            "lr": {"low": 1e-4, "high": 1e-1, "log": True},
        }

    def build_model(self) -> nn.Module:
        return Net(self.params["width"], self.params["layers"])

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        if self.params["optimizer"] == "sgd":
            return torch.optim.SGD(model.parameters(), lr=self.params["lr"], momentum=self.params["momentum"])
        return super().optimizer(model)

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
