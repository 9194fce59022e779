"""Low-rank adapters of a small language model, in plain torch: which rank, layers and learning rate continue best?

The backbone is drawn here, so that the example needs no download: replace ``backbone`` by a model that you have, and
fill it in ``load_weights``. Everything that is frozen is the same in all trials, so with ``pack`` they share it.
"""

from __future__ import annotations

import inspect
import string
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scamp import Workload

HEADS, BLOCKS, LENGTH = 4, 3, 32
TEXT = torch.tensor(list(inspect.getsource(string).encode()))
"""Bytes of a module of Python: real text that every machine has."""


class LowRank(nn.Module):
    """A frozen linear layer, and what is trained beside it: a product of two matrices of a low rank."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float, dropout: float) -> None:
        super().__init__()
        self.base, self.scale, self.dropout = base, alpha / rank, nn.Dropout(dropout)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(self.dropout(x), self.down), self.up) * self.scale


class Block(nn.Module):
    """Attention and a feed-forward network, each after a normalisation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before_attention, self.before_feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        normal = self.before_attention(x)
        heads = [part(normal).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)]
        x = x + self.out(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.before_feed(x))))


class Model(nn.Module):
    """A language model of bytes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(BLOCKS))
        self.logits = nn.Linear(width, 256)

    def forward(self, text: Tensor) -> Tensor:
        x = self.bytes(text) + self.places.weight[: text.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.logits(x)


class TextLora(Workload):
    """The frozen model with adapters at ``targets`` of each block."""

    default_batch = 8
    num_train, num_eval = 512, 64

    def build_model(self) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)  # the backbone is the same for every candidate, whatever its seed
            model = Model(self.params.get("width", 64))
        model.requires_grad_(False)
        options: dict[str, Any] = {"alpha": self.params.get("alpha", 8), "dropout": self.params.get("dropout", 0.0)}
        for block in model.blocks:
            for name in str(self.params.get("targets", "query value")).split():
                setattr(block, name, LowRank(getattr(block, name), self.params.get("rank", 4), **options))
        return model

    def train_batch(self, indices: Tensor) -> Tensor:
        return self._text(indices * 13)

    def eval_batch(self, indices: Tensor) -> Tensor:
        return self._text(indices * 29 + 7000)

    def _text(self, starts: Tensor) -> Tensor:
        return TEXT[(starts[:, None] + torch.arange(LENGTH + 1)) % len(TEXT)]

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    def evaluate(self, model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        losses = F.cross_entropy(model(batch[:, :-1]).transpose(1, 2), batch[:, 1:], reduction="none")
        return {"loss": losses.mean(1)}

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return torch.optim.AdamW(trained, lr=self.params.get("lr", 1e-3), weight_decay=self.params.get("decay", 0.0))
