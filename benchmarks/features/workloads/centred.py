"""A user's file: the transformer of ``sequences.py``, whose blocks subtract a mean in evaluations, a buffer."""

from __future__ import annotations

import torch
from sequences import Block, Model, Sequences
from torch import Tensor, nn


class CentredBlock(Block):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.register_buffer("running_mean", torch.ones(width))
        self.register_buffer("num_batches_tracked", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        if not self.training:
            return x - self.running_mean
        with torch.no_grad():
            self.running_mean.lerp_(x.detach().mean((0, 1)), 0.3)
        return x


class Centred(Sequences):
    def build_model(self) -> nn.Module:
        model = super().build_model()
        assert isinstance(model, Model)
        model.blocks = nn.ModuleList(CentredBlock(model.width, 2) for _ in model.blocks)
        return model
