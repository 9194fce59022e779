"""A Swin transformer that reads scikit-learn's 1,797 handwritten digits (Liu et al., ICCV 2021).

The first half of the blocks sees 8×8 positions in windows of 4×4, the second half 4×4 positions of twice the width.
Every block has a ``Split``, so ranks can divide its heads (``tp``), or one rank can compute them in parts
(``co_shard``). The blocks differ in size, so the model is no ``Chain``. The study beside it is ``swin.yaml``.
"""

import torch
from torch import nn

from scamp import VitDigits
from workloads.models.swin import WindowBlock
from workloads.models.vit_digits import IMAGE_SIDE, NUM_CLASSES

WINDOW = 4


class SwinDigits(VitDigits):
    """Data, metrics and parameters of ``vit_digits``, but for ``patch``, ``mlp_ratio`` and ``dropout``.

    ``depth`` (2, 4, …) counts all blocks, ``width`` is that of the first half. Every pixel is a position.
    """

    def __init__(self, params):
        super().__init__(params)
        if self.depth % 2:
            raise ValueError(f"depth must be even, got {self.depth}: both halves have as many blocks")

    def build_model(self):
        return Swin(self.depth, self.width, self.heads)


class Swin(nn.Module):
    """Images [n, 8, 8] → logits [n, 10]."""

    def __init__(self, depth, width, heads):
        super().__init__()
        half, side, scale = depth // 2, IMAGE_SIDE, (2 * depth) ** -0.5
        self.embed = nn.Linear(1, width)
        self.positions = nn.Parameter(torch.randn(side**2, width) * 0.5)
        first = [WindowBlock(width, heads, side, WINDOW, bool(i % 2), scale) for i in range(half)]
        kinds = [MergingBlock, *[WindowBlock] * (half - 1)]
        second = [kind(2 * width, heads, side // 2, WINDOW, False, scale) for kind in kinds]
        self.blocks = nn.ModuleList([*first, *second])
        self.norm = nn.LayerNorm(2 * width)
        self.head = nn.Linear(2 * width * (side // 2) ** 2, NUM_CLASSES)

    def forward(self, images):
        x = self.embed(images.flatten(1)[..., None]) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).flatten(1))


class MergingBlock(WindowBlock):
    """A block after patch merging: each 2×2 positions become one, [n, 4 side², width / 2] → [n, side², width]."""

    def __init__(self, width, heads, side, *others):
        super().__init__(width, heads, side, *others)
        self.merged_norm = nn.LayerNorm(2 * width)
        self.reduce = nn.Linear(2 * width, width, bias=False)
        self.side = side

    def forward(self, x):
        x = x.unflatten(1, (self.side, 2, self.side, 2)).transpose(2, 3)
        return super().forward(self.reduce(self.merged_norm(x.flatten(3).flatten(1, 2))))
