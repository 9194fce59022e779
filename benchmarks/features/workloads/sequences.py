"""A user's file: a small transformer that continues sequences of digits, with whatever a training may ask for.

``schedule`` names a scheduler of torch. Every plan is possible.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import lr_scheduler

from workloads.protocol import Chain, Split, Workload

NUM_DIGITS = 11


class Attention(nn.Module):
    def __init__(self, width: int, head: int) -> None:
        super().__init__()
        self.head, self.qkv, self.out = head, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (-1, 3, self.head)).transpose(1, 2).unbind(-2)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(-2))
        return out


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(functional.gelu(self.up(x)))
        return out


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, width // heads)
        self.norm2, self.feed_forward = nn.LayerNorm(width), FeedForward(width)
        self.split = Split(
            columns=("attention.qkv", "feed_forward.up"),
            rows=("attention.out", "feed_forward.down"),
            norms=("norm1", "norm2"),
            most_parts=heads,
            branches=("attention", "feed_forward"),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.feed_forward(self.norm2(x))
        return out


class Model(Chain):
    enters, leaves = ("digits", "places"), ("norm", "last")

    def __init__(self, depth: int, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.width, self.length = width, length
        self.digits, self.places = nn.Embedding(NUM_DIGITS, width), nn.Parameter(0.1 * torch.randn(length, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, NUM_DIGITS)

    def enter(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.digits(inputs) + self.places
        return out

    def leave(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.norm(x))
        return out

    def hidden_shape(self, num_samples: int) -> tuple[int, ...]:
        return num_samples, self.length, self.width


class Sequences(Workload):
    num_train, num_eval, default_batch = 256, 20, 16

    def build_model(self) -> nn.Module:
        sizes = {"depth": 2, "width": 16, "heads": 2, "length": 8}
        model = Model(*(self.params.get(name, size) for name, size in sizes.items()))
        for name in self.params.get("frozen", ()):
            getattr(model, name).requires_grad_(False)
        return model

    def samples(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        places = torch.arange(self.params.get("length", 8) + 1)
        digits = (indices[:, None] + places * (1 + indices[:, None] % 5)) % NUM_DIGITS
        return digits[:, :-1], digits[:, 1:]

    train_batch = samples

    def eval_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.samples(self.num_train + indices)

    def losses(self, model: nn.Module, batch: Any) -> Tensor:
        inputs, targets = batch
        return functional.cross_entropy(model(inputs).transpose(1, 2), targets, reduction="none").mean(1)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return self.losses(model, batch).mean()

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"loss": self.losses(model, batch)}

    def optimizer(self, model: nn.Module) -> Any:
        kind, lr = getattr(torch.optim, self.params.get("optimizer", "AdamW")), self.params.get("lr", 0.02)
        if self.params.get("optimizers") == 2:
            tables = [parameter for name, parameter in model.named_parameters() if "blocks" not in name]
            others = [parameter for name, parameter in model.named_parameters() if "blocks" in name]
            return [torch.optim.SGD(tables, lr=10 * lr, momentum=0.9), kind(others, lr=lr)]
        return kind(model.parameters(), lr=lr)

    def scheduler(self, optimizer: torch.optim.Optimizer, steps: int) -> Any:
        match self.params.get("schedule"):
            case "cosine":
                warm = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
                cosine = lr_scheduler.CosineAnnealingLR(optimizer, steps - 2)
                return lr_scheduler.SequentialLR(optimizer, [warm, cosine], [2])
            case "one_cycle":
                return lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=steps + 1)
            case "steps":
                return lr_scheduler.MultiStepLR(optimizer, [1, 3], 0.3)
            case "plateau":
                self.plateau = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0, threshold=0.5)
                return self.plateau
        return None

    def on_evaluate(self, metrics: Any) -> None:
        if self.params.get("schedule") == "plateau":
            self.plateau.step(metrics["loss"])
