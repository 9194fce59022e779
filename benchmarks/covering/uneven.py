"""Models with rows that two or four ranks do not divide: plain layers, LSTMs, and mixtures of experts.

``make(model=…)`` returns what ``scamp estimate benchmarks/covering/uneven.py:make`` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Made = tuple[nn.Module, Callable[[int], Any], Callable[[nn.Module, Any], Tensor]]
_WIDTH, _CHOSEN = 72, 2  # experts of each position


class Feeding(nn.Module):
    """A feed-forward with a residual connection."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.down(functional.gelu(self.up(x)))
        return result


class Recurrent(nn.Module):
    """An LSTM over sequences, or over one chunk of them after the other: its weights then have several gradients."""

    def __init__(self, width: int, num_chunks: int) -> None:
        super().__init__()
        self.net, self.num_chunks = nn.LSTM(width, width, batch_first=True), num_chunks

    def forward(self, x: Tensor) -> Tensor:
        state, outputs = None, []
        for chunk in x.chunk(self.num_chunks, 1):
            out, state = self.net(chunk, state)
            outputs.append(out)
        return x + torch.cat(outputs, 1)


class Experts(nn.Module):
    """Experts whose weights are slices of one parameter; each position takes two of them."""

    def __init__(self, width: int, num: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, num)
        self.up = nn.Parameter(torch.randn(num, width, inner) / width**0.5)
        self.down = nn.Parameter(torch.randn(num, inner, width) / inner**0.5)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        weights, chosen = self.gate(flat).softmax(-1).topk(_CHOSEN)
        out = flat
        for number in range(len(self.up)):
            places, ranks = torch.where(chosen == number)
            expert_output = functional.gelu(flat[places] @ self.up[number]) @ self.down[number]
            out = out.index_add(0, places, expert_output * weights[places, ranks, None])
        return out.view(x.shape)


class Words(nn.Module):
    """An embedding, blocks, and a head with as many rows."""

    def __init__(self, rows: int, width: int, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.embedding, self.blocks, self.head = (
            nn.Embedding(rows, width),
            nn.ModuleList(blocks),
            nn.Linear(width, rows),
        )

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


def _plain(rows: int, depth: int) -> nn.Module:
    return Words(rows, _WIDTH, [Feeding(_WIDTH, 301) for _ in range(depth)])


def _lstm(rows: int, depth: int) -> nn.Module:
    return Words(997, rows, [Recurrent(rows, 1) for _ in range(depth)])


def _chunked_lstm(rows: int, depth: int) -> nn.Module:
    return Words(997, rows, [Recurrent(rows, 4) for _ in range(depth)])


def _experts(rows: int, depth: int) -> nn.Module:
    return Words(997, 128, [Experts(128, rows, 515) for _ in range(depth)])


MODELS: Mapping[str, Callable[[int, int], nn.Module]] = {
    "plain": _plain,
    "lstm": _lstm,
    "chunked_lstm": _chunked_lstm,
    "experts": _experts,
}


def make(model: str, rows: int, depth: int = 1, size: int = 32) -> Made:
    """One of ``MODELS`` on sequences of ``size`` words. ``rows``: words, the width of an LSTM, or experts."""

    def words(batch: int) -> Tensor:
        return torch.randint(0, 997, (batch, size))

    def loss(module: nn.Module, batch: Tensor) -> Tensor:
        logits: Tensor = module(batch)
        return logits.square().mean()

    return MODELS[model](rows, depth), words, loss
