"""A user's file: the transformer of ``sequences.py`` with complex parameters besides the real ones."""

from __future__ import annotations

import torch
from sequences import Block, Model, Sequences
from torch import Tensor, nn


class TurnedBlock(Block):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.turn = nn.Parameter(0.3 * torch.randn(width, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward((x * (1 + self.turn.conj())).abs())


class Turned(Sequences):
    def build_model(self) -> nn.Module:
        model = super().build_model()
        assert isinstance(model, Model)
        model.blocks = nn.ModuleList(TurnedBlock(model.width, 2) for _ in model.blocks)
        return model
