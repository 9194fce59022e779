"""The block of Swin transformers: self-attention within windows of positions, which every second block shifts.

Liu et al., "Swin Transformer", ICCV 2021. Models embed positions before the first block, the variant of the paper's
table 4, because its relative position bias belongs to single heads and a ``Split`` divides linear layers only.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads.models.transformer import FeedForward
from workloads.protocol import Split

COLUMNS = ("attention.qkv", "feed_forward.up")
ROWS = ("attention.out", "feed_forward.down")
NORMS = ("norm1", "norm2")


class WindowBlock(nn.Module):
    """Pre-norm block: attention within windows, then a GELU feed-forward of 4 × width.

    Input and output have shape [n, side², width]: the positions of a square, row by row. ``window`` divides ``side``.
    A ``shifted`` block moves its windows by half their side, unless one window covers all. ``branch_scale`` shrinks the
    initial outputs of both branches.
    """

    def __init__(self, width: int, heads: int, side: int, window: int, shifted: bool, branch_scale: float) -> None:
        super().__init__()
        self.split = Split(COLUMNS, ROWS, NORMS, heads, branches=("attention", "feed_forward"))
        self.norm1 = nn.LayerNorm(width)
        self.attention = WindowAttention(width, heads, side, window, shifted)
        self.norm2 = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, 4 * width)
        with torch.no_grad():
            self.attention.out.weight.mul_(branch_scale)
            self.feed_forward.down.weight.mul_(branch_scale)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        fed: Tensor = self.feed_forward(self.norm2(x))
        return x + fed


class WindowAttention(nn.Module):
    """Multi-head self-attention within each window; it computes as many heads as its weights hold.

    Positions become windows after ``qkv`` and before ``out``, so that these two see whole sequences, which ranks may
    hold parts of.
    """

    excluded: Tensor

    def __init__(self, width: int, heads: int, side: int, window: int, shifted: bool) -> None:
        super().__init__()
        self.heads, self.side, self.window = heads, side, window
        self.shift = window // 2 if shifted and window < side else 0
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.register_buffer("excluded", _excluded(side, window, self.shift), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        head = x.shape[-1] // self.heads
        parts = self._windows(self.qkv(x))
        # Consecutive rows of the weight are whole heads (q, k and v of each), because a rank may hold only some heads.
        parts = parts.reshape(*parts.shape[:3], -1, 3, head)
        heads = parts.permute(4, 0, 1, 3, 2, 5)  # q, k and v, each [n, windows, heads, window², head]
        q, k, v = heads.flatten(2, 3) if self.shift else heads.flatten(1, 2)
        mask = self.excluded[:, None].expand(-1, heads.shape[3], -1, -1).flatten(0, 1) if self.shift else None
        attended = functional.scaled_dot_product_attention(q, k, v, mask).view_as(heads[0])
        out: Tensor = self.out(self._positions(attended.transpose(2, 3).flatten(3)))
        return out

    def _windows(self, x: Tensor) -> Tensor:
        """[n, side², width] → [n, windows, window², width]."""
        count, window = self.side // self.window, self.window
        x = x.reshape(len(x), self.side, self.side, -1)
        if self.shift:
            x = x.roll((-self.shift, -self.shift), (1, 2))
        x = x.reshape(len(x), count, window, count, window, -1)
        return x.transpose(2, 3).reshape(len(x), count**2, window**2, -1)

    def _positions(self, x: Tensor) -> Tensor:
        """[n, windows, window², width] → [n, side², width]."""
        count, window = self.side // self.window, self.window
        x = x.reshape(len(x), count, count, window, window, -1).transpose(2, 3)
        x = x.reshape(len(x), self.side, self.side, -1)
        return (x.roll((self.shift, self.shift), (1, 2)) if self.shift else x).flatten(1, 2)


def _excluded(side: int, window: int, shift: int) -> Tensor:
    """0 where a position may attend to another, -inf where the shift has wrapped one of them around.

    Shape [windows, window², window²].
    """
    rows = torch.arange(side).roll(-shift)
    wrapped = (rows < shift) & (torch.arange(side) >= side - shift)
    region = wrapped[:, None].long() * 2 + wrapped[None, :].long()
    count = side // window
    windows = region.reshape(count, window, count, window).transpose(1, 2).reshape(count**2, window**2)
    return torch.zeros(len(windows), window**2, window**2).masked_fill(
        windows[:, :, None] != windows[:, None, :], float("-inf")
    )
