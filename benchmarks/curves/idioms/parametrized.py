"""Weights that are computed from other parameters in each pass: spectral, weight and orthogonal normalisation."""

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from .points import WIDTH, Points, Stack


class Residual(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.linear = linear

    def forward(self, x):
        return x + self.linear(x).tanh()


class SpectralNorm(Points):
    """Spectral normalisation as a parametrization, with two iterations in each pass.

    From https://github.com/pytorch/pytorch/pull/59564 (the parametrization and its buffers).
    """

    def build_model(self):
        linears = [nn.Linear(WIDTH, WIDTH) for _ in range(2)]
        return Stack(*(Residual(parametrizations.spectral_norm(linear, n_power_iterations=2)) for linear in linears))


class WeightNorm(Points):
    """Weight normalisation: direction and magnitude are parameters.

    From https://github.com/pytorch/pytorch/pull/103001 (weight normalisation as a parametrization).
    """

    def build_model(self):
        return Stack(*(Residual(parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))) for _ in range(2)))


class Symmetric(nn.Module):
    def forward(self, weight):
        return weight.triu() + weight.triu(1).t()


class LowRank(nn.Module):
    """Adds a product of two thin matrices to a weight."""

    def __init__(self, rank):
        super().__init__()
        self.left = nn.Parameter(torch.zeros(WIDTH, rank))
        self.right = nn.Parameter(torch.randn(rank, WIDTH) * 0.1)

    def forward(self, weight):
        return weight + self.left @ self.right


class StackedParametrizations(Points):
    """Two parametrizations of the user's own on one weight, of which one has parameters; the other is shared.

    From https://github.com/huggingface/peft/issues/1834 (adapters of the user's own under FSDP).
    """

    def build_model(self):
        symmetric = Symmetric()
        model = Stack(*(Residual(nn.Linear(WIDTH, WIDTH)) for _ in range(2)))
        for block in model.blocks:
            parametrize.register_parametrization(block.linear, "weight", LowRank(2))
            parametrize.register_parametrization(block.linear, "weight", symmetric)
        return model
