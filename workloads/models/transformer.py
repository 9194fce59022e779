"""Shared by the built-in transformers: the block and the learning-rate schedule."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads.protocol import Split


class Block(nn.Module):
    """Pre-norm transformer block: self-attention, then a GELU feed-forward of ``mlp_ratio`` × width.

    ``branch_scale`` shrinks the initial outputs of both branches, so that their sum over all blocks stays near one.
    Input and output have shape [n, t, width].
    """

    def __init__(
        self, width: int, heads: int, mlp_ratio: float, dropout: float, branch_scale: float, causal: bool
    ) -> None:
        super().__init__()
        self.split = Split(
            columns=("attention.qkv", "feed_forward.up"),
            rows=("attention.out", "feed_forward.down"),
            norms=("norm1", "norm2"),
            most_parts=heads,
            branches=("attention", "feed_forward"),
        )
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.norm2 = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, round(mlp_ratio * width))
        self.dropout = nn.Dropout(dropout)
        with torch.no_grad():
            self.attention.out.weight.mul_(branch_scale)
            self.feed_forward.down.weight.mul_(branch_scale)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        fed: Tensor = self.dropout(self.feed_forward(self.norm2(x)))
        return x + fed


class Attention(nn.Module):
    """Multi-head self-attention: each position attends to all positions or, if ``causal``, to itself and earlier ones.

    It computes as many heads as its weights hold, so it also works on a tensor-parallel rank's part.
    """

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        # Consecutive rows of the weight are whole heads (q, k and v of each), because a rank may hold only some heads.
        q, k, v = self.qkv(x).unflatten(-1, (-1, 3, x.shape[-1] // self.heads)).permute(3, 0, 2, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        out: Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return out


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them: [n, t, width] → [n, t, width]."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        down: Tensor = self.down(functional.gelu(self.up(x)))
        return down


def warmup_cosine(step: int, steps: int, warmup: float) -> float:
    """Share of the peak learning rate: a linear rise over the share ``warmup`` of ``steps``, then a cosine to 5 %."""
    rise = max(1, round(steps * warmup))
    if step < rise:
        return (step + 1) / rise
    return 0.05 + 0.475 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))
