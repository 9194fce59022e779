"""A small GPT that learns to continue a text of an artificial language: a workload as users write it in their file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads.protocol import Batch, Workload

VOCABULARY, CONTEXT = 64, 32
LIKELY = 4  # characters that may well follow two others
HEAD_WIDTH = 32


def text(length: int, seed: int) -> Tensor:
    """Draws characters; most of them follow from the two before them."""
    drawn = torch.Generator().manual_seed(seed)
    follows = torch.randint(VOCABULARY, (VOCABULARY, VOCABULARY, LIKELY), generator=drawn).tolist()
    choices = torch.randint(LIKELY, (length,), generator=drawn).tolist()
    characters = [0, 1]
    for choice in choices[2:]:
        characters.append(follows[characters[-2]][characters[-1]][choice])
    return torch.tensor(characters)


class Block(nn.Module):
    """Attention and a network of two layers, each with its shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // HEAD_WIDTH
        self.before_attention, self.before_layers = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        num, length, width = x.shape
        parts = self.queries_keys_values(self.before_attention(x)).view(num, length, 3, self.heads, HEAD_WIDTH)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(num, length, width))
        return x + self.layers(self.before_layers(x))


class Gpt(nn.Module):
    """Predicts the next character at each place."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

    def forward(self, characters: Tensor) -> Tensor:
        x = self.characters(characters) + self.places(torch.arange(CONTEXT, device=characters.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x))


class Characters(Workload):
    """``depth`` and ``width`` set the size of the model."""

    num_train, num_eval, default_batch = 1024, 64, 16

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__(params)
        self.text = text(CONTEXT * (self.num_train + self.num_eval) + 1, seed=1)

    def build_model(self) -> nn.Module:
        return Gpt(self.params.get("depth", 2), self.params.get("width", 64))

    def train_batch(self, indices: Tensor) -> Batch:
        places = (indices * CONTEXT).unsqueeze(1) + torch.arange(CONTEXT + 1)
        rows = self.text[places]
        return rows[:, :-1], rows[:, 1:]

    def eval_batch(self, indices: Tensor) -> Batch:
        return self.train_batch(indices + self.num_train)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        losses = functional.cross_entropy(model(batch[0]).transpose(1, 2), batch[1], reduction="none")
        return {"loss": losses.mean(1)}
